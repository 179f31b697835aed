package io.shoal.core.wire

import io.shoal.core.BundleException
import io.shoal.core.Fixture
import io.shoal.core.LimitExceededException
import io.shoal.core.StaleBundleException
import io.shoal.core.TamperedBundleException
import io.shoal.core.Tensors
import io.shoal.core.WireException
import java.io.ByteArrayOutputStream
import java.util.zip.CRC32
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue

class BundleTest {
    @Test
    fun `a signed bundle is read`() {
        val bundle = Fixture.bundle
        assertEquals(digest(Fixture.payload), bundle.digest)
        assertEquals(listOf(2, 4), bundle.manifest.window.shape)
        assertEquals(listOf("w", "b", "n.running_mean", "n.running_var", "c"), bundle.manifest.received().map { it.name })
        val keys = setOf("shared/w", "shared/b", "statistic/n.running_mean", "statistic/n.running_var", "private/p", "slot/m", "memory/k")
        assertEquals(keys, bundle.initial.keys)
    }

    @Test
    fun `a private or slot tensor without a value starts at zero`() {
        val initial = Fixture.bundle.initial
        val remaining = initial - "slot/m" - "private/p"
        val bundle = Bundle.unpack(zip(rewritten(remaining)))
        assertEquals(remaining.keys + setOf("slot/m", "private/p"), bundle.initial.keys)
        for (key in remaining.keys) assertEquals(remaining[key], bundle.initial[key])
        for (key in listOf("slot/m", "private/p")) {
            assertEquals(initial.getValue(key).shape, bundle.initial.getValue(key).shape)
            assertTrue(bundle.initial.getValue(key).toFloatArray().all { it == 0f })
        }
        assertEquals(setOf("slot/m", "private/p"), Bundle.unpack(zip(rewritten(initial - "shared/w"))).initial.keys - remaining.keys)
    }

    @Test
    fun `tensors that start at zero cannot take more memory than a bundle may`() {
        for (shape in listOf("[4096, 4097]", "[2147483647, 2147483647, 2147483647]")) {
            val files = rewritten(Fixture.bundle.initial - "slot/m") { it.replaceFirst(Regex("(\"m\",.*?\"shape\": )\\[.*?]", RegexOption.DOT_MATCHES_ALL), "$1$shape") }
            val bundle = Bundle.unpack(zip(files))
            val error = assertFailsWith<LimitExceededException> { bundle.initial }
            assertTrue("start at zero" in error.message!!)
        }
    }

    @Test
    fun `a bundle by another key is refused`() {
        assertFailsWith<TamperedBundleException> { Bundle.unpack(Fixture.payload, Fixture.otherKeys) }
    }

    @Test
    fun `what does not fit the manifest is refused`() {
        val files = files()
        Bundle.unpack(zip(files))
        assertFailsWith<TamperedBundleException> { Bundle.unpack(zip(files - "manifest.sig"), Fixture.keys) }
        assertFailsWith<TamperedBundleException> { Bundle.unpack(zip(files + ("step.onnx" to ByteArray(3)))) }
        assertFailsWith<TamperedBundleException> { Bundle.unpack(zip(files + ("more" to ByteArray(3)))) }
        assertFailsWith<TamperedBundleException> { Bundle.unpack(zip(files - "step.onnx")) }
        assertFailsWith<BundleException> { Bundle.unpack(zip(files - "manifest.json")) }
        val changed = files.getValue("manifest.json").decodeToString().replace("\"version\": 3", "\"version\": 4").toByteArray()
        assertFailsWith<TamperedBundleException> { Bundle.unpack(zip(files + ("manifest.json" to changed)), Fixture.keys) }
        assertFailsWith<BundleException> { Bundle.unpack(zip(files + ("manifest.json" to "{}".toByteArray()))) }
    }

    @Test
    fun `compressed entries are refused`() {
        val packed = ByteArrayOutputStream()
        ZipOutputStream(packed).use {
            it.putNextEntry(ZipEntry("manifest.json"))
            it.write(ByteArray(100_000))
        }
        assertFailsWith<BundleException> { Bundle.unpack(packed.toByteArray()) }
    }

    @Test
    fun `what is no archive is refused`() {
        for (size in listOf(0, 1, 21, 22, 23, 100, 70_000)) assertFailsWith<WireException> { Bundle.unpack(ByteArray(size)) }
    }

    @Test
    fun `an older version is refused`() {
        val manifest = Fixture.bundle.manifest
        Bundle.checkVersion(manifest, mapOf("fake" to 3, "other" to 9))
        assertFailsWith<StaleBundleException> { Bundle.checkVersion(manifest, mapOf("fake" to 4)) }
    }

    @Test
    fun `a newer runtime than the device has is asked for in vain`() {
        Fixture.bundle.require("executorch", "1.3.0")
        Fixture.bundle.require("executorch", "1.10")
        Fixture.bundle.require("other", "0.1")
        assertFailsWith<BundleException> { Fixture.bundle.require("executorch", "1.2.9+cpu") }
        assertTrue(compareVersions("1.3.0a0+12", "1.3") == 0 && compareVersions("1.3.1", "1.3") > 0)
    }

    @Test
    fun `a graph without a program for the runtime is named`() {
        val error = assertFailsWith<BundleException> { Fixture.bundle.program("step", "executorch", "executorch-portable") }
        assertEquals("bundle fake: graph 'step' has no program for executorch or executorch-portable; its programs: none; it was exported for ONNX alone", error.message)
        assertFailsWith<BundleException> { Fixture.bundle.program("none", "executorch") }
    }

    @Test
    fun `a file has one key or several`() {
        val pem = java.io.File(Fixture.folder, "trust.pem").readText()
        assertEquals(2, PublicKey.parse(pem).size)
        assertEquals(2, PublicKey.parse("text before\n" + pem.replace("\n", "\r\n")).size)
        Bundle.unpack(Fixture.payload, Fixture.keys.drop(1))
        assertFailsWith<TamperedBundleException> { Bundle.unpack(Fixture.payload, Fixture.keys.take(1)) }
        val other = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
        assertFailsWith<BundleException> { PublicKey.parse(pem + other) }
    }

    @Test
    fun `keys of another kind are refused`() {
        for (pem in listOf("", "nonsense", "-----BEGIN PUBLIC KEY-----\n!!\n-----END PUBLIC KEY-----", "-----END PUBLIC KEY-----")) {
            assertFailsWith<BundleException> { PublicKey.parse(pem) }
        }
    }

    /**
     * Return the unsigned files of a bundle with these initial values, whose manifest names their
     * hash.
     */
    private fun rewritten(initial: Tensors, changed: (String) -> String = { it }): Map<String, ByteArray> {
        val files = files()
        val payload = encodeTensors(initial)
        val text = files.getValue("manifest.json").decodeToString().replace(digest(files.getValue("initial.safetensors")), digest(payload))
        val manifest = changed(text).also { assertTrue(it != files.getValue("manifest.json").decodeToString()) }
        return files - "manifest.sig" + ("manifest.json" to manifest.toByteArray()) + ("initial.safetensors" to payload)
    }

    private fun files(): Map<String, ByteArray> = readStoredZip(Fixture.payload)

    private fun zip(files: Map<String, ByteArray>): ByteArray = ByteArrayOutputStream().also { packed ->
        ZipOutputStream(packed).use {
            it.setMethod(ZipOutputStream.STORED)
            for ((name, data) in files) {
                it.putNextEntry(ZipEntry(name).apply { size = data.size.toLong() }.apply { crc = CRC32().apply { update(data) }.value })
                it.write(data)
            }
        }
    }.toByteArray()
}
