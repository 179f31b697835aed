package io.shoal.android

import io.shoal.core.ConfigException
import io.shoal.core.Current
import io.shoal.core.Log
import io.shoal.core.ShoalException
import io.shoal.core.Tensor
import io.shoal.core.wire.Bundle
import io.shoal.core.wire.Metrics
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Update
import io.shoal.core.wire.digest
import io.shoal.core.wire.encodeTensors
import io.shoal.core.wire.encodeUpdate
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.util.Random
import java.util.concurrent.ConcurrentLinkedQueue
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicBoolean
import java.util.concurrent.atomic.AtomicInteger
import kotlin.concurrent.thread
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertTrue

/**
 * Two fleets of one app, each with its own jobs, files written by another thread, and an app that
 * does anything at any time. Jobs are those of `RoundWorker` without a broker: they record what
 * would be sent, with its sender and its broker.
 */
class StressTest {
    @TempDir
    lateinit var root: File

    private val number = System.getProperty("shoal.hostile").orEmpty().toIntOrNull() ?: 600
    private val payload by lazy { fromPython("executor/bundle.zip").readBytes() }
    private val trust by lazy { fromPython("executor/trust.pem").readText() }
    private val bundle by lazy { Bundle.unpack(payload, PublicKey.parse(trust)) }
    private val x = Tensor.of(FloatArray(8), listOf(1, 2, 4))
    private val escaped = ConcurrentLinkedQueue<Throwable>()
    private val keys by lazy { TestKeys(File(root, "keys")) }

    /**
     * Fleet, its service, and the results of its jobs. [least] and [most] bound the weights of its
     * models, which no other fleet's have.
     */
    private inner class Side(val name: String, val least: Int, val most: Int) {
        val platform = FakePlatform(keys, FakeDesk(name, trust)).also { platform ->
            platform.assets["a.shoal"] = payload
            platform.assets["a.safetensors"] = encodeTensors(weightsOf(bundle, least.toFloat()))
        }
        private val writer = Executors.newSingleThreadExecutor()
        val fleet: Fleet
        val rounds = AtomicInteger()
        val roundCalls = AtomicInteger()
        val stopped = AtomicBoolean()
        private val leaving = AtomicInteger()
        private val leaves = AtomicInteger()
        val sent = ConcurrentLinkedQueue<String>()
        private val tokens = AtomicInteger(least)
        private val random = Random(least.toLong())

        init {
            platform.disk = java.util.concurrent.Executor { task -> writer.execute { guarded(task::run) } }
            fleet = Fleet(name, Home.of(root, name), platform, Log.SILENT)
            fleet.addRoundListener({ roundCalls.incrementAndGet() }, Runnable::run)
            configure()
        }

        fun configure() {
            val builder = FleetBuilder(name).enrol("https://$name", tokenOf(1000 * tokens.incrementAndGet() + least)).trust(trust)
            builder.windows(HomeTest.Source::class.java).model("a.shoal", "a.safetensors")
            fleet.configure(builder.build(), builder.token)
        }

        /** Leave the fleet, and take part again. Meanwhile there are no settings. */
        fun leave() {
            leaving.incrementAndGet()
            leaves.incrementAndGet()
            fleet.leave(eraseRecordings = true)
            configure()
            platform.disk.execute { leaving.decrementAndGet() }
        }

        /**
         * Call a function that needs settings; it is refused while the phone leaves, and at no
         * other time.
         */
        fun <T> call(act: Fleet.() -> T): T? {
            val before = leaves.get()
            val isLeaving = leaving.get() > 0
            return try {
                fleet.act()
            } catch (error: ConfigException) {
                if (isLeaving || leaves.get() != before) null else throw error
            }
        }

        fun predict() {
            val answer = call { predict(x) } ?: return
            val weight = (answer.values(0)[0] - 0.5f) * 32
            if (weight < least - 0.01f || weight > most + 0.01f) throw AssertionError("$name answers with $weight, its models have $least to $most")
        }

        /** Run a job with the same containment of errors as `RoundWorker`. */
        fun job() {
            fleet.running.lock()
            stopped.set(false)
            try {
                if (!fleet.consent.isGranted || fleet.enrol(stopped::get) != null) return
                fleet.bringModel()
                val (storage, id, broker) = Triple(fleet.storage(), fleet.deviceId, fleet.settings.broker)
                if (storage.update() != null) { // of a job that was stopped before it could send it
                    sent += "$id $broker"
                    storage.dropUpdate()
                }
                val round = rounds.get() + 1L
                val update = Update(name, 1, round, 0, id, "c".repeat(64), 8, 1, Metrics(), Metrics(8, 1.0, 4))
                storage.putUpdate(name, round, encodeUpdate(update, emptyMap()), mapOf("private/p" to Tensor.of(floatArrayOf(least.toFloat()))))
                rounds.incrementAndGet()
                if (!fleet.consent.isGranted || stopped.get()) return
                sent += "$id $broker"
                storage.dropUpdate()
                val model = encodeTensors(weightsOf(bundle, (least + random.nextInt(most - least + 1)).toFloat()))
                storage.putBlob(bundle.digest, payload)
                storage.putBlob(digest(model), model)
                storage.saveCurrent(Current(bundle.digest, digest(model), name, emptyMap(), round))
            } catch (_: ShoalException) { // the phone has left
            } finally {
                fleet.running.unlock()
            }
        }

        fun end() {
            writer.shutdown()
            assertTrue(writer.awaitTermination(60, TimeUnit.SECONDS))
        }
    }

    /** Functions that an app may call, in any order. */
    private fun acts(random: Random, sides: List<Side>, number: Int): Unit = repeat(number) {
        val side = sides[random.nextInt(2)]
        guarded {
            when (random.nextInt(12)) {
                0, 1 -> side.fleet.consent.grant("terms-${random.nextInt(3)}")
                2 -> side.fleet.consent.withdraw(eraseLocal = random.nextBoolean())
                3 -> side.configure()
                4 -> side.fleet.enrol()
                5 -> side.predict()
                6 -> side.call { requestTraining() }
                7 -> side.fleet.addListener({ }, Runnable::run)
                8 -> side.stopped.set(true)
                9 -> side.fleet.labels.run { if (random.nextBoolean()) add("walking", it.toLong(), it + 9L) else remove(it.toLong(), it + 5L) }
                10 -> if (random.nextInt(8) == 0) side.leave()
                else -> side.call { "$state $model $modelMetrics $deviceId" }
            }
        }
        if (random.nextInt(4) == 0) Thread.sleep(1)
    }

    private fun guarded(act: () -> Unit) {
        try {
            act()
        } catch (error: Throwable) {
            escaped += error
        }
    }

    @Test
    fun `two fleets in one app, with anything at any time, lose nothing, mix nothing up and throw nothing`() {
        val sides = listOf(Side("a", 1, 4), Side("b", 9, 12))
        val over = AtomicBoolean()
        val jobs = sides.map { side -> thread { while (!over.get()) guarded(side::job) } }
        val predictions = AtomicInteger()
        val predicting = sides.map { side ->
            thread {
                while (!over.get()) {
                    guarded(side::predict)
                    predictions.incrementAndGet()
                }
            }
        }
        val acting = listOf(7L, 8L).map { seed -> thread { acts(Random(seed), sides, number / 2) } }
        acting.forEach { it.join() }
        for (side in sides) guarded { side.fleet.consent.grant("terms-9") }
        over.set(true)
        (jobs + predicting).forEach { it.join() }
        for (side in sides) guarded(side::job)
        sides.forEach { it.end() }
        assertEquals(emptyList(), escaped.map { it.stackTraceToString() }.distinct())
        for (side in sides) {
            assertEquals(setOf("${side.name}-1 mqtts://${side.name}.example"), side.sent.toSet())
            assertEquals(side.rounds.get(), side.roundCalls.get(), "each round is told of")
            assertEquals(null, side.fleet.storage().update(), "no update is left behind")
            side.predict()
        }
        println("$number acts of the app, ${sides.sumOf { it.rounds.get() }} rounds, ${predictions.get()} predictions, none refused")
    }
}
