package io.shoal.core

import io.shoal.core.wire.Plan
import java.io.IOException

/**
 * Checkpoints of one plan at a time. A device can train without checkpoints, so a fault in a
 * checkpoint or on the disk is logged and never raised.
 *
 * @param progressed called for each checkpoint on the disk, with the number of graph runs up to it
 *   and true if the work resumes from it now
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

    /** Seconds spent on the plan so far, earlier starts of the client included. */
    val workedS: Double get() = beforeS + clock.steadySeconds() - beganS

    /** Begin a plan, and return the checkpoint to resume from, or null. */
    fun begin(plan: Plan, executor: Executor): Checkpoint? {
        this.plan = plan
        this.executor = executor
        beforeS = 0.0
        beganS = clock.steadySeconds()
        dueS = beganS + pace.pauseS()
        val checkpoint = stored(plan, executor) ?: return null
        beforeS = checkpoint.place.seconds
        progressed(plan, checkpoint.place.runs, true)
        log.write(Log.Level.INFO, "Plan resumed from a checkpoint: device=$deviceId round=${plan.round} verb=${checkpoint.place.verb} runs=${checkpoint.place.runs}")
        return checkpoint
    }

    /** Delete the checkpoint and log the problem; the plan starts from the beginning. */
    fun drop(problem: String) {
        log.write(Log.Level.WARNING, "Checkpoint dropped, the plan starts again: device=$deviceId: $problem")
        beforeS = 0.0
        try {
            storage.dropCheckpoint()
        } catch (error: IOException) {
            log.write(Log.Level.WARNING, "Checkpoint not deleted: device=$deviceId: $error")
        }
    }

    /** Write a checkpoint if one is due. Called before each batch. */
    fun between() {
        if (clock.steadySeconds() >= dueS) write()
    }

    /** Write a checkpoint now. Call it only between two batches. */
    fun write() {
        val (plan, executor) = Pair(plan ?: return, executor ?: return)
        if (dueS == Double.POSITIVE_INFINITY) return
        val beganS = clock.steadySeconds()
        val checkpoint = try {
            executor.checkpoint(workedS).also { storage.putCheckpoint(encoded(plan, executor, it)) }
        } catch (error: IOException) { // the disk is full, for instance
            return failed(error, beganS)
        } catch (error: ShoalException) {
            return failed(error, null)
        } catch (error: OutOfMemoryError) {
            return failed(error, null)
        }
        dueS = clock.steadySeconds().let { it + pace.pauseS(it - beganS) }
        progressed(plan, checkpoint.place.runs, false)
    }

    private fun encoded(plan: Plan, executor: Executor, checkpoint: Checkpoint): ByteArray {
        val size = listOf(checkpoint.tensors, checkpoint.sent, checkpoint.protected).sumOf { part -> part.values.sumOf { it.data.limit().toLong() } }
        if (size > MOST_BYTES) throw LimitExceededException("the checkpoint has $size bytes: at most $MOST_BYTES are written")
        return encodeCheckpoint(basis(plan, executor), checkpoint)
    }

    /**
     * Log a failed checkpoint. [beganS] is null if no later checkpoint of this plan can succeed.
     */
    private fun failed(error: Throwable, beganS: Double?) {
        log.write(Log.Level.WARNING, "Checkpoint not written, work continues: device=$deviceId: ${describe(error)}")
        dueS = if (beganS == null) Double.POSITIVE_INFINITY else clock.steadySeconds().let { it + pace.pauseS(it - beganS) }
    }

    private fun basis(plan: Plan, executor: Executor) =
        Basis(Basis.FORMAT, BuildVersion.CLIENT, runtime, workDigest(plan), executor.windowsDigest)

    /** Return the checkpoint on the disk, or null if it is not of this plan and its windows. */
    private fun stored(plan: Plan, executor: Executor): Checkpoint? {
        val problem = try {
            val (basis, checkpoint) = decodeCheckpoint(storage.checkpoint() ?: return null)
            unusable(basis, basis(plan, executor)).ifEmpty { return checkpoint }
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
        /**
         * Size of the largest checkpoint that is written. While writing, an app's memory holds it
         * twice.
         */
        const val MOST_BYTES = 64L * 1024 * 1024
    }
}
