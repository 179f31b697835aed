package io.shoal.core

import io.shoal.core.wire.Fields
import io.shoal.core.wire.JsonArray
import io.shoal.core.wire.parseJson
import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertTrue

class HeldOutTest {
    @Test
    fun `the windows held out are those of every implementation`() {
        val cases = (parseJson(File(repository, "wire/vectors/held.json").readBytes()) as JsonArray).items.map { Fields(it, "held.json") }
        assertTrue(cases.size >= 60)
        for (case in cases) {
            val (count, share) = Pair(case.count("windows").toInt(), case.double("share"))
            val held = case.list("held") { it, path -> Fields.countOf(it, path).toInt() }
            val mask = heldOut(count, share)
            assertEquals(held, mask.indices.filter { mask[it] }, "of $count windows $share")
            assertEquals(held.size, numHeldOut(count, share))
        }
    }
}
