package io.shoal.core.wire

import io.shoal.core.ConfigException
import io.shoal.core.UnknownTopicException
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith

class TopicsTest {
    private val topics = Topics("f")

    @Test
    fun `topics parse back`() {
        for (kind in listOf("check-in", "update", "decline", "fetch", "status", "plan", "reply")) {
            assertEquals(Address(kind, deviceId = "a.B-_9"), topics.parse(topics.device("a.B-_9", kind)))
        }
        assertEquals(Address("blob", digest = "0".repeat(64)), topics.parse(topics.blob("0".repeat(64))))
        assertEquals(Address("aggregator"), topics.parse(topics.aggregator))
        assertEquals("shoal/1/f/device/d/plan", topics.device("d", "plan"))
    }

    @Test
    fun `other topics are unknown`() {
        val others = listOf(
            "", "shoal/1/f", "shoal/1/f/", "shoal/1/g/aggregator", "shoal/2/f/aggregator", "x/shoal/1/f/aggregator", "shoal/1/f/blob/xyz",
            "shoal/1/f/device/d/other", "shoal/1/f/device//plan", "shoal/1/f/device/d/plan/x", "shoal/1/f/device/a b/plan",
        )
        for (topic in others) assertFailsWith<UnknownTopicException>(topic) { topics.parse(topic) }
    }

    @Test
    fun `only blobs are large`() {
        assertEquals(64 * 1024 * 1024, topics.limit(topics.blob("0".repeat(64))))
        for (topic in listOf(topics.aggregator, topics.device("d", "plan"), "blob/x", "")) assertEquals(128 * 1024, topics.limit(topic))
    }

    @Test
    fun `names that cannot stand in a topic are refused`() {
        for (name in listOf("", "a/b", "+", "#", "é", "a\n", "x".repeat(65))) {
            assertFailsWith<ConfigException>(name) { Topics(name) }
            assertFailsWith<ConfigException>(name) { topics.device(name, "plan") }
        }
    }
}
