package io.shoal.core

import io.shoal.core.wire.Plan
import java.io.IOException

/**
 * When a checkpoint of a plan is written, and when work goes on from one, for one plan at a time. A device trains as well without one:
 * whatever is wrong with a checkpoint or with the disk costs a line of the log.
 *
 * @param progressed told of each checkpoint that is on the disk: how often a graph was run until then, and whether work goes on from it now
 */
internal class Checkpoints(
    private val deviceId: String,
    private val storage: Storage,
    private val runtime: String,
    private val clock: Clock,
    private val log: Log,
    private val pace: Pace,
    private val progressed: (Plan, Long, Boolean) -> Unit,
) {
    private var plan: Plan? = null
    private var executor: Executor? = null
    private var beganS = 0.0
    private var beforeS = 0.0
    private var dueS = Double.POSITIVE_INFINITY

    /** How long the plan's work took so far, that of earlier starts included. */
    val workedS: Double get() = beforeS + clock.steadySeconds() - beganS

    /** Work on a plan begins; the checkpoint that it goes on from, or null. */
    fun begin(plan: Plan, executor: Executor): Checkpoint? {
        this.plan = plan
        this.executor = executor
        beforeS = 0.0
        beganS = clock.steadySeconds()
        dueS = beganS + pace.pauseS()
        val made = stored(plan, executor) ?: return null
        beforeS = made.place.seconds
        progressed(plan, made.place.runs, true)
        log.write(Log.Level.INFO, "going on device=$deviceId round=${plan.round} verb=${made.place.verb} runs=${made.place.runs}")
        return made
    }

    /** The plan starts anew. */
    fun drop(problem: String) {
        log.write(Log.Level.WARNING, "the checkpoint is dropped, the plan starts anew device=$deviceId: $problem")
        beforeS = 0.0
        try {
            storage.dropCheckpoint()
        } catch (error: IOException) {
            log.write(Log.Level.WARNING, "the checkpoint cannot be deleted device=$deviceId: $error")
        }
    }

    /** Before each batch: writes one if it is time to. */
    fun between() {
        if (clock.steadySeconds() >= dueS) write()
    }

    /** Writes one now, between two batches. */
    fun write() {
        val (plan, executor) = Pair(plan ?: return, executor ?: return)
        if (dueS == Double.POSITIVE_INFINITY) return
        val beganS = clock.steadySeconds()
        val made = try {
            executor.checkpoint(workedS).also { storage.putCheckpoint(encoded(plan, executor, it)) }
        } catch (error: IOException) { // the disk is full, for instance
            return failed(error, beganS)
        } catch (error: ShoalException) {
            return failed(error, null)
        } catch (error: OutOfMemoryError) {
            return failed(error, null)
        }
        dueS = clock.steadySeconds().let { it + pace.pauseS(it - beganS) }
        progressed(plan, made.place.runs, false)
    }

    private fun encoded(plan: Plan, executor: Executor, made: Checkpoint): ByteArray {
        val size = listOf(made.tensors, made.sent, made.protected).sumOf { part -> part.values.sumOf { it.data.limit().toLong() } }
        if (size > MOST_BYTES) throw LimitExceeded("it has $size bytes, at most $MOST_BYTES are written")
        return encodeCheckpoint(basis(plan, executor), made)
    }

    /** [beganS]: null where no later one of the same plan would do better. */
    private fun failed(error: Throwable, beganS: Double?) {
        log.write(Log.Level.WARNING, "no checkpoint is written, work goes on device=$deviceId: ${describe(error)}")
        dueS = if (beganS == null) Double.POSITIVE_INFINITY else clock.steadySeconds().let { it + pace.pauseS(it - beganS) }
    }

    private fun basis(plan: Plan, executor: Executor) =
        Basis(Basis.FORMAT, Outbox.CLIENT, runtime, workDigest(plan), executor.windowsDigest)

    /** The checkpoint on the disk, if it is of this plan and these windows. */
    private fun stored(plan: Plan, executor: Executor): Checkpoint? {
        val problem = try {
            val (basis, made) = decodeCheckpoint(storage.checkpoint() ?: return null)
            unusable(basis, basis(plan, executor)).ifEmpty { return made }
        } catch (error: IOException) {
            describe(error)
        } catch (error: WireException) {
            describe(error)
        } catch (error: OutOfMemoryError) {
            describe(error)
        }
        drop(problem)
        return null
    }

    companion object {
        /** A larger checkpoint is not written: an app's memory holds it twice while it is. */
        const val MOST_BYTES = 64L * 1024 * 1024
    }
}
