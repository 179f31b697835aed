package io.shoal.core

import io.shoal.core.wire.Acknowledge
import io.shoal.core.wire.AggregatorStatus
import io.shoal.core.wire.Busy
import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.DeclineReason
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Fetch
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Refuse
import io.shoal.core.wire.Train
import io.shoal.core.wire.decode
import io.shoal.core.wire.decodeUpdate
import io.shoal.core.wire.digest
import org.junit.jupiter.api.io.TempDir
import java.io.File
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertNull
import kotlin.test.assertTrue

/** End of the process. */
internal class Killed : Error()

/**
 * Storage that simulates the end of the process at its write number [at], before or after the
 * write.
 */
internal class Mortal(private val storage: Storage, private val at: Int, private val after: Boolean) : Storage by storage {
    private var writes = 0

    override fun save(session: Session) = write { storage.save(session) }

    override fun putBlob(digest: String, payload: ByteArray) = write { storage.putBlob(digest, payload) }

    override fun keepBlobs(digests: Set<String>) = write { storage.keepBlobs(digests) }

    override fun saveAnswers(payload: ByteArray) = write { storage.saveAnswers(payload) }
    override fun saveSurveys(payload: ByteArray) = write { storage.saveSurveys(payload) }

    override fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors) =
        write { storage.putUpdate(runId, round, payload, private) }

    override fun dropUpdate() = write { storage.dropUpdate() }

    override fun saveCurrent(current: Current) = write { storage.saveCurrent(current) }

    private fun write(action: () -> Unit) {
        writes++
        if (writes == at && !after) throw Killed()
        action()
        if (writes == at) throw Killed()
    }
}

class AgentTest {
    @TempDir
    lateinit var folder: File

    private fun storage() = FolderStorage(folder)

    private fun device(policy: Policy? = null, loader: GraphLoader = FakeLoader()) = FakeAggregator(storage(), policy = policy, loader = loader)

    @Test
    fun `a round`() {
        val device = device().up()
        val checkIn = decode<CheckIn>(device.sent("check-in").first())
        assertEquals(Pair(41L, null), Pair(checkIn.numTrain, checkIn.policy))
        device.plan()
        device.offer()
        val payload = device.sent("update").single()
        val (update, tensors) = decodeUpdate(payload)
        assertEquals(listOf(1L, 5L, 6L, 0L), listOf(update.round, update.epoch, update.numSteps, update.attempt))
        assertEquals(setOf("delta/w", "delta/b", "statistic/n.running_mean", "statistic/n.running_var"), tensors.keys)
        assertTrue(update.bytesReceived > Fixture.payload.size)
        device.reply(Acknowledge("phone", digest(payload)))
        assertEquals(Stage.ANSWERED, device.agent.session.stage)
        assertNull(storage().update())
        assertEquals(false, device.agent.waiting)
    }

    @Test
    fun `an update is kept and sent again until it is answered`() {
        val device = device().up()
        device.plan()
        device.offer()
        val first = device.sent("update").single()
        device.after(10.0)
        assertContentEquals(first, device.sent("update").single())
        device.after(10.0)
        assertEquals(0, device.sent("update").size, "the pause has doubled")
        device.status(1001.0, "new boot")
        assertContentEquals(first, device.sent("update").single())
        device.plan()
        assertContentEquals(first, device.sent("update").single())
        device.reply(Acknowledge("phone", "0".repeat(64)))
        val again = device().up()
        assertContentEquals(first, again.sent("update").first())
        again.reply(Acknowledge("phone", digest(first)))
        again.after(10_000.0)
        assertEquals(0, again.sent("update").size)
    }

    @Test
    fun `a busy aggregator gets the update after the time that it says`() {
        val device = device().up()
        device.plan()
        device.offer()
        val update = device.sent("update").single()
        device.reply(Busy("phone", digest(update), 100.0))
        device.after(99.0)
        assertEquals(0, device.sent("update").size)
        device.after(2.0)
        assertContentEquals(update, device.sent("update").single())
    }

    @Test
    fun `without a connection nothing is sent again, nor counted`() {
        val device = device().up()
        device.plan()
        device.offer()
        val update = device.sent("update").single()
        device.agent.handle(LinkDown("gone"))
        device.agent.close()
        val counted = storage().traffic()
        device.link.published.clear()
        repeat(60) { device.after(60.0) }
        device.agent.close()
        assertEquals(0, device.link.published.size)
        assertEquals(counted, storage().traffic())
        device.agent.handle(LinkUp)
        assertContentEquals(update, device.sent("update").single())
    }

    @Test
    fun `an update that is finished without a connection waits for the next`() {
        val device = device().up()
        device.plan()
        device.deliverBlobs()
        device.agent.handle(LinkDown("gone"))
        device.work()
        assertEquals(Pair(Stage.PENDING, 0), Pair(device.agent.session.stage, device.sent("update").size))
        device.agent.handle(LinkUp)
        assertEquals(device.agent.session.update, digest(device.sent("update").single()))
    }

    @Test
    fun `a new aggregator makes it check in and one of an epoch that is over does not`() {
        val device = device().up()
        device.sent("check-in")
        for ((boot, epoch) in listOf("one" to 6L, "one" to 6L, "two" to 7L, "zero" to 6L)) device.status(2000.0, boot, epoch)
        assertEquals(2, device.sent("check-in").size)
    }

    @Test
    fun `a phone that the aggregator does not know checks in again`() {
        val device = device().up()
        device.sent("check-in")
        device.reply(Refuse("phone", "unknown-device", "it has not checked in", "status"))
        device.reply(Refuse("phone", "unknown-blob", "not on offer", "fetch"))
        assertEquals(1, device.sent("check-in").size)
    }

    @Test
    fun `a status of an epoch that is over does not make it begin`() {
        val device = device().up()
        device.agent.handle(LinkDown("gone"))
        device.agent.handle(LinkUp)
        device.plan()
        device.status(2000.0, "zero", 4)
        device.offer()
        assertEquals(0, device.sent("update").size)
        device.status(2000.0, "boot", 5)
        device.work()
        assertEquals(1, device.sent("update").size)
    }

    @Test
    fun `an update that was damaged on disk is made again`() {
        val device = device().up()
        device.plan()
        device.offer()
        val update = device.sent("update").single()
        File(folder, "update").apply { writeBytes(readBytes().also { it[200] = (it[200] + 1).toByte() }) }
        val again = device().up()
        again.work()
        assertEquals(decodeUpdate(update).second, decodeUpdate(again.sent("update").single()).second)
    }

    @Test
    fun `a plan that a restart interrupted is taken up`() {
        device().up().plan()
        val again = device().up()
        again.offer()
        assertEquals(1, again.sent("update").size)
    }

    @Test
    fun `a missing blob is asked for and one with another hash ignored`() {
        val device = device().up()
        device.plan()
        device.after(10.0)
        assertEquals(setOf(digest(Fixture.payload), digest(Fixture.model)), device.sent("fetch").map { decode<Fetch>(it).digest }.toSet())
        device.agent.handle(Delivery(device.topics.blob(digest(Fixture.payload)), byteArrayOf(1)))
        assertNull(storage().blob(digest(Fixture.payload)))
    }

    @Test
    fun `a blob that was damaged on disk is fetched again`() {
        val device = device().up()
        device.plan()
        device.offer()
        device.reply(Acknowledge("phone", digest(device.sent("update").single())))
        File(folder, "blobs/${digest(Fixture.model)}").writeBytes(ByteArray(9))
        device.plan(Fixture.plan(2))
        assertEquals(setOf(device.topics.blob(digest(Fixture.model))), device.link.subscribed.filter { "/blob/" in it }.toSet())
        device.offer()
        assertEquals(2, decodeUpdate(device.sent("update").single()).first.round)
    }

    @Test
    fun `work for which a blob is damaged is no try`() {
        val device = device().up()
        device.plan()
        repeat(Rounds.MOST_TRIES + 1) {
            device.deliverBlobs()
            File(folder, "blobs/${digest(Fixture.model)}").writeBytes(ByteArray(5))
            device.work()
        }
        assertEquals(Stage.WORKING, device.agent.session.stage, "it is not quarantined")
    }

    @Test
    fun `a blob of a plan that was overtaken is not waited for`() {
        val device = device().up()
        device.plan(Fixture.plan(1).copy(model = "9".repeat(64)))
        device.plan(Fixture.plan(2))
        device.offer()
        assertEquals(listOf(2L), device.sent("update").map { decodeUpdate(it).first.round })
    }

    @Test
    fun `an earlier epoch gets the proof of the later one`() {
        val device = device().up()
        val accepted = Fixture.plan(3, epoch = 7)
        device.plan(accepted)
        device.plan(Fixture.plan(4, epoch = 6))
        val decline = device.declines().single()
        assertEquals(listOf(DeclineReason.STALE, 6L, 4L), listOf(decline.reason, decline.epoch, decline.round))
        assertEquals(Fixture.signed(accepted).decodeToString(), decline.proof)
        assertEquals(accepted, storage().session().plan)
    }

    @Test
    fun `nobody without a key is heard`() {
        val device = device().up()
        val before = device.agent.session
        device.unsigned(device.topics.device("phone", "plan"), Fixture.plan())
        device.unsigned(device.topics.device("phone", "reply"), Fixture.finish())
        device.unsigned(device.topics.aggregator, AggregatorStatus(true, "forged", 9, 4e9))
        device.plan(Fixture.plan().copy(deviceId = "another"))
        device.reply(Fixture.finish().copy(deviceId = "another"))
        assertEquals(before, device.agent.session)
        assertEquals(5, device.log.count { "ignored" in it })
        val trusting = FakeAggregator(FolderStorage(File(folder, "trusting")), emptyList()).up()
        trusting.unsigned(trusting.topics.device("phone", "plan"), Fixture.plan())
        trusting.offer()
        assertEquals(1, trusting.sent("update").size)
    }

    @Test
    fun `a refused update is dropped`() {
        val device = device().up()
        device.plan()
        device.offer()
        val update = digest(device.sent("update").single())
        device.reply(Refuse("phone", "malformed", "x", "check-in"))
        assertEquals(Stage.PENDING, device.agent.session.stage)
        device.reply(Refuse("phone", "too-large", "x", "update", update))
        assertEquals(Stage.ANSWERED, device.agent.session.stage)
        assertNull(storage().update())
    }

    @Test
    fun `a device that dies at any write goes on and is counted once`() {
        val whole = twoRounds(File(folder, "whole"), 0, false)
        assertEquals(2, whole.size)
        for (at in 1..22) for (after in listOf(false, true)) {
            val counted = twoRounds(File(folder, "$at-$after"), at, after)
            assertEquals(whole.keys, counted.keys)
            for ((round, payload) in whole) {
                assertEquals(decodeUpdate(payload).second, decodeUpdate(counted.getValue(round)).second, "round $round, killed at $at $after")
            }
        }
    }

    /**
     * Run two rounds, with an aggregator that counts each round's first update and acknowledges
     * equal ones, and a finish; return the counted updates.
     */
    private fun twoRounds(folder: File, killAt: Int, after: Boolean): Map<Long, ByteArray> {
        val counted = HashMap<Long, ByteArray>()
        var device = FakeAggregator(Mortal(FolderStorage(folder), killAt, after))
        var restarts = 0
        fun until(isOver: () -> Boolean, step: () -> Unit) {
            while (!isOver()) {
                try {
                    device.up()
                    step()
                    device.offer()
                    for (payload in device.sent("update")) {
                        val number = decodeUpdate(payload).first.round
                        val first = counted.getOrPut(number) { payload }
                        assertEquals(decodeUpdate(first).second, decodeUpdate(payload).second, "another update of the same round")
                        device.reply(Acknowledge("phone", digest(payload)))
                    }
                } catch (_: Killed) {
                    check(++restarts == 1)
                    device = FakeAggregator(FolderStorage(folder))
                }
            }
        }
        for (round in 1L..2L) {
            val plan = Fixture.plan(round, verbs = listOf(Evaluate(), Train(8, 2)))
            until({ device.agent.session.let { it.plan?.round == round && it.stage == Stage.ANSWERED } }) { device.plan(plan) }
        }
        until({ device.storage.current() != null }) { device.reply(Fixture.finish()) }
        assertEquals(digest(Fixture.model), FolderStorage(folder).current()!!.model)
        return counted
    }
}
