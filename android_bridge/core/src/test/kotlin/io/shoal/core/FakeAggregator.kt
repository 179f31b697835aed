package io.shoal.core

import io.shoal.core.secret.SecretPolicy
import io.shoal.core.wire.AggregatorStatus
import io.shoal.core.wire.Decline
import io.shoal.core.wire.Message
import io.shoal.core.wire.PacketLimit
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Policy
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Topics
import io.shoal.core.wire.decode
import io.shoal.core.wire.digest
import io.shoal.core.wire.encode

/** Link without a broker, which records publications and subscriptions of the device. */
internal class FakeLink : Link {
    val published = ArrayList<Pair<String, ByteArray>>()
    val subscribed = LinkedHashSet<String>()
    override var limit: PacketLimit = PacketLimit.MQTT

    override fun subscribe(topics: Collection<String>) {
        subscribed += topics
    }

    override fun unsubscribe(topics: Collection<String>) {
        subscribed -= topics.toSet()
    }

    override fun publish(topic: String, payload: ByteArray, retain: Boolean) {
        published += topic to payload
    }

    override fun receive(timeoutMs: Long): LinkEvent? = null

    override fun close() = Unit
}

/** The device `phone` of the fleet `f`, and the side of the aggregator and the broker. */
internal class FakeAggregator(
    val storage: Storage,
    keys: List<PublicKey> = Fixture.keys,
    policy: Policy? = null,
    val loader: GraphLoader = FakeLoader(),
    windows: Windows = Fixture.windows,
    private val stop: () -> Boolean = { false },
    health: () -> Health = { Health() },
    pace: Pace = Pace(),
    secret: SecretPolicy? = null,
    key: EnrolmentKey? = null,
) {
    val topics = Topics("f")
    val link = FakeLink()
    val clock = TestClock()
    val log = ArrayList<String>()

    /** Blobs that the broker has besides the fixture's bundle and model. */
    val blobs = ArrayList<ByteArray>().apply { addAll(listOf(Fixture.payload, Fixture.model)) }
    private val logger = Log { level, line -> log += "$level $line" }
    val agent = Agent(
        Identity("phone", "f", keys, policy, secret, key),
        link,
        Environment(windows, storage, loader, health, clock = clock, log = logger, noise = { 0.25 }, pace = pace),
        stop,
    )

    /** Connect; the retained status comes at once. */
    fun up(status: Boolean = true) = apply {
        agent.handle(LinkUp)
        if (status) status()
    }

    fun status(atS: Double = 1000.0, bootId: String = "boot", epoch: Long = 5) =
        deliver(topics.aggregator, AggregatorStatus(true, bootId, epoch, atS))

    fun deliver(topic: String, message: Message) = agent.handle(Delivery(topic, Fixture.signed(message)))

    /** Deliver a plan, and do its work. */
    fun plan(plan: Plan = Fixture.plan()) = deliver(topics.device("phone", "plan"), plan).also { work() }

    fun reply(message: Message) = deliver(topics.device("phone", "reply"), message).also { work() }

    /** Deliver the blobs that the device waits for, as retained publications. */
    fun deliverBlobs() {
        for (payload in blobs) {
            if (topics.blob(digest(payload)) in link.subscribed) agent.handle(Delivery(topics.blob(digest(payload)), payload))
        }
    }

    /** Call [deliverBlobs], and do the work that follows. */
    fun offer() {
        deliverBlobs()
        work()
    }

    fun work() {
        var turns = 0
        while (agent.hasWork) {
            check(turns++ < 100) { "there is always more to do" }
            agent.work()
        }
        agent.tick()
    }

    fun sent(kind: String): List<ByteArray> {
        val topic = topics.device("phone", kind)
        return link.published.filter { it.first == topic }.map { it.second }.also { link.published.removeAll { it.first == topic } }
    }

    fun declines(): List<Decline> = sent("decline").map { decode(it) }

    fun after(seconds: Double) {
        clock.steadyS += seconds
        clock.nowS += seconds
        agent.tick()
    }

    /** Deliver a message of somebody without a key. */
    fun unsigned(topic: String, message: Message) = agent.handle(Delivery(topic, encode(message))).also { work() }
}
