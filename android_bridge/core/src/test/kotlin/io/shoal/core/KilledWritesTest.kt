package io.shoal.core

import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.util.Random
import kotlin.concurrent.thread
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertTrue

/**
 * Process whose two threads write into a state folder. It prints each completed write on a line.
 */
internal object KilledWriter {
    private fun say(line: String) = synchronized(this) { System.out.write("$line\n".toByteArray()); System.out.flush() }

    @JvmStatic
    fun main(arguments: Array<String>) {
        val storage = FolderStorage(File(arguments[0]))
        val (models, marks) = arguments.drop(1).map(String::toLong)
        thread {
            for (number in generateSequence(models + 1) { it + 1 }) {
                storage.saveCurrent(KilledWritesTest.modelOf(number))
                say("model $number")
            }
        }
        for (number in generateSequence(marks + 1) { it + 1 }) {
            if (number % 2 == 0L) storage.saveFailures(number) else storage.putCheckpoint(ByteArray(500) { number.toByte() })
            say("mark $number")
        }
    }
}

class KilledWritesTest {
    @TempDir
    lateinit var folder: File

    private val writes = System.getProperty("shoal.hostile").orEmpty().toIntOrNull() ?: 120

    @Test
    fun `a process that is killed at random while two threads write loses nothing that it had written`() {
        val random = Random(5)
        var (models, marks, kills) = Triple(0L, 0L, 0)
        while (models + marks < writes) {
            val (model, mark) = killed(models, marks, 1 + random.nextInt(100), random.nextInt(4_000_000))
            kills++
            val log = ArrayList<String>()
            val storage = FolderStorage(folder, { level, line -> log += "$level $line" })
            val release = storage.current()?.let { wholeOf(it) } ?: 0
            assertTrue(release in model..model + 1, "model $release is in use, $model was written")
            val before = storage.before()?.let { wholeOf(it) } ?: 0 // it is written first, so it may be the same
            assertTrue(before in release - 1..release, "model $before is the one before $release")
            val (even, odd) = Pair(mark / 2 * 2, (mark + 1) / 2 * 2 - 1)
            val failures = storage.failures() // of the model in use: another one has none
            assertTrue(failures in setOf(0, even, even + 2), "$failures failures, $even were written")
            val checkpoint = storage.checkpoint()
            val marked = checkpoint?.distinct()?.singleOrNull()
            assertTrue(marked in setOf(odd.toByte(), (odd + 2).toByte()) || checkpoint == null && odd < 1, "the checkpoint is $marked, $odd was written")
            assertEquals(emptyList<String>(), log, "nothing is damaged")
            models = release
            marks = mark
        }
        println("${models + marks} writes, $kills kills: nothing is lost or torn")
    }

    /**
     * Start the writer after these numbers, and kill it a while after its [lines]th line. Return
     * the last number that each thread printed.
     */
    private fun killed(models: Long, marks: Long, lines: Int, afterNs: Int): Pair<Long, Long> {
        val java = File(System.getProperty("java.home"), "bin/java").path
        val command = listOf(java, "-XX:TieredStopAtLevel=1", "-cp", System.getProperty("java.class.path"), KilledWriter::class.java.name)
        val process = ProcessBuilder(command + listOf(folder.path, "$models", "$marks")).redirectError(ProcessBuilder.Redirect.INHERIT).start()
        var (model, mark) = Pair(models, marks)
        process.inputStream.bufferedReader().useLines { output ->
            for ((number, line) in output.withIndex()) {
                val (what, last) = line.split(" ").takeIf { it.size == 2 } ?: break // the last line may be cut
                if (what == "model") model = last.toLong() else mark = last.toLong()
                if (number + 1 == lines) {
                    Thread.sleep(afterNs / 1_000_000L, afterNs % 1_000_000)
                    process.toHandle().destroyForcibly() // the process's own method would close its output
                }
            }
        }
        assertEquals(128 + 9, process.waitFor(), "it was killed")
        return Pair(model, mark)
    }

    /** Return the number of a model in use, which its private tensors repeat. */
    private fun wholeOf(current: Current): Long {
        assertEquals(modelOf(current.release).private, current.private)
        return current.release
    }

    companion object {
        fun modelOf(number: Long) =
            Current("b".repeat(64), "c".repeat(64), "r", mapOf("private/p" to Tensor.of(floatArrayOf(number.toFloat()))), number)
    }
}
