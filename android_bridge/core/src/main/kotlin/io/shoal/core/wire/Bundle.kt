package io.shoal.core.wire

import io.shoal.core.BundleException
import io.shoal.core.InternalShoalApi
import io.shoal.core.LimitExceededException
import io.shoal.core.MalformedException
import io.shoal.core.StaleBundleException
import io.shoal.core.TamperedBundleException
import io.shoal.core.Tensor
import io.shoal.core.Tensors

/**
 * Verified bundle. [files] are the bytes of each file by name; [digest] is the hash of the whole
 * archive.
 */
@InternalShoalApi
public class Bundle private constructor(
    public val manifest: Manifest,
    public val files: Map<String, ByteArray>,
    public val digest: String,
) {
    /**
     * Initial value of every tensor that has one, by `ROLE/NAME`. Do not write into them. A
     * private, slot or memory tensor without a value in the file starts at zero.
     *
     * @throws LimitExceededException the tensors that start at zero take more memory than a bundle may
     */
    public val initial: Tensors by lazy {
        val stored = decodeTensors(files.getValue(INITIAL), Limits.RECEIVED).tensors
        val zero = manifest.ofRole(Names.PRIVATE, Names.SLOT, Names.MEMORY).filter { it.key !in stored }
        var size = 0L
        for (spec in zero) { // a shape may promise more bytes than a Long holds
            size += minOf(Tensor.numBytes(spec.dtype, spec.shape), MAX_BYTES + 1L)
            if (size > MAX_BYTES) throw LimitExceededException("bundle ${manifest.name}: its tensors that start at zero take more than $MAX_BYTES bytes")
        }
        stored + zero.associate { it.key to Tensor.allocate(it.dtype, it.shape) }
    }

    /**
     * Return the graph of this name.
     *
     * @throws BundleException the bundle has no such graph
     */
    public fun graph(name: String): Graph = manifest.graphs[name]
        ?: throw BundleException("bundle ${manifest.name}: no graph '$name'; its graphs: ${manifest.graphs.keys.sorted().joinToString()}")

    /**
     * Return a graph's program for the first of these [runtimes] that has one, and its bytes.
     *
     * @throws BundleException the bundle has no such graph, or no program of it for any of them
     */
    public fun program(graph: String, vararg runtimes: String): Pair<Program, ByteArray> {
        val programs = graph(graph).programs
        val program = runtimes.firstNotNullOfOrNull { programs[it] }
        if (program == null) {
            val others = programs.keys.sorted().joinToString().ifEmpty { "none; it was exported for ONNX alone" }
            throw BundleException(
                "bundle ${manifest.name}: graph '$graph' has no program for ${runtimes.joinToString(" or ")}; its programs: $others",
            )
        }
        return Pair(program, files.getValue(program.file))
    }

    /**
     * Check that the bundle was not exported with a newer [runtime] than this device's [version] of
     * it. A bundle whose `created_by` does not name the runtime passes; it has no programs for it.
     *
     * @throws BundleException the bundle needs a newer runtime
     */
    public fun require(runtime: String, version: String) {
        val needed = manifest.createdBy[runtime] ?: return
        if (compareVersions(version, needed) < 0) {
            throw BundleException("bundle ${manifest.name}: it was exported with $runtime $needed, this device has $version")
        }
    }

    public companion object {
        /** Maximum size of a bundle (bytes). */
        public const val MAX_BYTES: Int = 64 * 1024 * 1024

        private const val MANIFEST = "manifest.json"
        private const val SIGNATURE = "manifest.sig"
        private const val INITIAL = "initial.safetensors"

        /**
         * Read and verify a bundle. If there are [trusted] keys, one of them must have signed it.
         * Otherwise only the hashes are checked.
         *
         * @throws LimitExceededException it is larger than [MAX_BYTES]
         * @throws TamperedBundleException a hash or the signature does not match
         * @throws BundleException it is not a bundle, lacks a file, or has a format that this
         *   version does not know
         */
        public fun unpack(payload: ByteArray, trusted: List<PublicKey> = emptyList()): Bundle {
            if (payload.size > MAX_BYTES) throw LimitExceededException("bundle of ${payload.size} bytes: at most $MAX_BYTES are accepted")
            val entries = readStoredZip(payload)
            val text = entries.remove(MANIFEST) ?: throw BundleException("bundle of ${payload.size} bytes: it has no $MANIFEST")
            val signature = entries.remove(SIGNATURE)
            if (trusted.isNotEmpty()) verify(trusted, signature, text)
            val manifest = try {
                Manifest.parse(text)
            } catch (error: MalformedException) {
                throw BundleException("bundle of ${payload.size} bytes: not readable: ${error.message}")
            }
            checkFiles(manifest, entries)
            return Bundle(manifest, entries, digest(payload))
        }

        /**
         * Check that the bundle is not older than the [versions] that were loaded before, by the
         * bundle's name.
         *
         * @throws StaleBundleException it is older
         */
        public fun checkVersion(manifest: Manifest, versions: Map<String, Long>) {
            val loaded = versions[manifest.name] ?: return
            if (manifest.version < loaded) {
                throw StaleBundleException("bundle ${manifest.name}: version ${manifest.version} is older than version $loaded, which was loaded before")
            }
        }

        private fun verify(trusted: List<PublicKey>, signature: ByteArray?, text: ByteArray) {
            if (signature == null || signature.isEmpty()) {
                throw TamperedBundleException("bundle: it is not signed, and a signature by a trusted key is required")
            }
            if (trusted.none { it.verify(signature, text) }) throw TamperedBundleException("bundle: its signature was not made with a trusted key")
        }

        private fun checkFiles(manifest: Manifest, entries: Map<String, ByteArray>) {
            val what = "bundle ${manifest.name}"
            if (manifest.format != 1L) throw BundleException("$what: format ${manifest.format}; this Shoal reads format 1")
            if (entries.keys != manifest.files.keys) {
                val listed = manifest.files.keys.sorted().joinToString()
                throw TamperedBundleException("$what: its files are ${entries.keys.sorted().joinToString()}, but its manifest names $listed")
            }
            for ((name, data) in entries) {
                if (digest(data) != manifest.files[name]) {
                    throw TamperedBundleException("$what: $name has SHA-256 ${digest(data)}, but its manifest says ${manifest.files[name]}")
                }
            }
            val named = manifest.graphs.values.flatMap { graph -> listOf(graph.file) + graph.programs.values.map { it.file } } + INITIAL
            val missing = named.toSortedSet() - entries.keys
            if (missing.isNotEmpty()) throw BundleException("$what: missing files: ${missing.sorted().joinToString()}")
        }
    }
}

/**
 * Compare versions like `1.3.1` by their numbers. What follows the numbers (`+cpu`, `a0`,
 * `-SNAPSHOT`) does not count.
 */
internal fun compareVersions(one: String, other: String): Int {
    val (a, b) = listOf(one, other).map { text -> text.takeWhile { it.isDigit() || it == '.' }.split('.').map { it.toIntOrNull() ?: 0 } }
    return (0 until maxOf(a.size, b.size)).map { a.getOrElse(it) { 0 }.compareTo(b.getOrElse(it) { 0 }) }.firstOrNull { it != 0 } ?: 0
}
