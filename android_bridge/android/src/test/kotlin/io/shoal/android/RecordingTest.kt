package io.shoal.android

import io.shoal.android.Labels.LabelledTime
import io.shoal.core.ConfigException
import io.shoal.core.DataException
import io.shoal.core.Log
import io.shoal.core.ModelUnavailableException
import io.shoal.core.NO_LABEL
import io.shoal.core.Tensor
import io.shoal.core.windowsOf
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.nio.file.Files
import java.nio.file.Path
import java.time.Duration
import java.util.Random
import kotlin.test.Test
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertTrue

private const val SECOND_NS = 1_000_000_000L

/** Rows of each stretch. */
private class Stretches : GridSink {
    val stretches = arrayListOf(ArrayList<FloatArray>())
    val times = ArrayList<Long>()

    override fun row(timeNs: Long, values: FloatArray) {
        stretches.last() += values.copyOf()
        times += timeNs
    }

    override fun cut() {
        stretches += ArrayList<FloatArray>()
    }

    val sizes: List<Int> get() = stretches.map { it.size }
}

class SensorGridTest {
    private val vector = GridTrack(3)

    private fun line(grid: SensorGrid, track: Int, times: LongProgression, slope: Float) {
        for (time in times) grid.add(track, time, floatArrayOf(slope * time / 1e9f, 1f, -slope * time / 1e9f))
    }

    @Test
    fun `sensors of different rates come onto one grid, in whatever batches they come`() {
        for (batched in listOf(true, false)) {
            val seen = Stretches()
            val grid = SensorGrid(listOf(vector, vector), 50.0, seen)
            val (fast, slow) = Pair(0..2 * SECOND_NS step 10_000_000, 100_000_000L..1_900_000_000L step 7_000_000)
            if (batched) {
                line(grid, 0, fast, 3f)
                line(grid, 1, slow, -2f)
            } else {
                val all = fast.map { Triple(it, 0, 3f) } + slow.map { Triple(it, 1, -2f) }
                for ((time, track, slope) in all.sortedBy { it.first }) line(grid, track, time..time step 1, slope)
            }
            val rows = seen.stretches.single()
            for ((i, row) in rows.withIndex()) {
                val time = 0.1f + i / 50f
                assertEquals(3f * time, row[0], 1e-4f)
                assertEquals(-2f * time, row[3], 1e-4f)
                assertEquals(1f, row[4])
            }
            assertEquals(90.0, rows.size.toDouble(), 1.0)
        }
    }

    @Test
    fun `where a sensor is silent nothing is made up`() {
        val seen = Stretches()
        val grid = SensorGrid(listOf(vector, vector), 50.0, seen)
        line(grid, 0, 0..SECOND_NS step 10_000_000, 1f)
        line(grid, 0, 3 * SECOND_NS..4 * SECOND_NS step 10_000_000, 1f)
        line(grid, 1, 0..4 * SECOND_NS step 10_000_000, 1f)
        assertEquals(listOf(51, 51), seen.sizes)
        line(grid, 0, 0..4 * SECOND_NS step 10_000_000, 1f) // what comes again is dropped
        assertEquals(listOf(51, 51), seen.sizes)
    }

    @Test
    fun `a sensor that speaks when something changes counts until it is too old`() {
        val seen = Stretches()
        val grid = SensorGrid(listOf(vector, GridTrack(1, holdNs = 2 * SECOND_NS)), 10.0, seen)
        grid.add(1, 0, floatArrayOf(7f))
        line(grid, 0, 0..SECOND_NS step 10_000_000, 1f)
        grid.add(1, SECOND_NS + 1, floatArrayOf(8f))
        line(grid, 0, SECOND_NS + 10_000_000..5 * SECOND_NS step 10_000_000, 1f)
        assertEquals(31, seen.stretches.single().size, "two seconds after the last word nothing is known")
        assertEquals(listOf(7f, 8f), listOf(seen.stretches[0][10][3], seen.stretches[0][11][3]))
        grid.add(1, 5 * SECOND_NS, floatArrayOf(9f))
        line(grid, 0, 5 * SECOND_NS + 1..6 * SECOND_NS step 10_000_000, 1f)
        assertEquals(2, seen.stretches.size)
        assertEquals(9f, seen.stretches[1][0][3])
    }

    @Test
    fun `what waits for a sensor that never speaks is bounded`() {
        val seen = Stretches()
        val grid = SensorGrid(listOf(vector, vector), 50.0, seen)
        val before = Runtime.getRuntime().let { System.gc(); it.totalMemory() - it.freeMemory() }
        for (i in 0L until 2_000_000) grid.add(0, i * 5_000_000, floatArrayOf(1f, 2f, 3f))
        val after = Runtime.getRuntime().let { System.gc(); it.totalMemory() - it.freeMemory() }
        assertTrue(after - before < 8 * 1024 * 1024, "${after - before} bytes wait")
        assertEquals(listOf(0), seen.sizes)
    }

    @Test
    fun `any gaps and orders neither throw nor make up a row`() {
        val random = Random(5)
        repeat(200) {
            val seen = Stretches()
            val grid = SensorGrid(listOf(vector, GridTrack(1, SECOND_NS), vector), 50.0, seen)
            val (last, measured) = Pair(LongArray(3), List(3) { ArrayList<Long>() })
            repeat(400) {
                val track = random.nextInt(3)
                last[track] += if (random.nextInt(20) == 0) random.nextInt(2_000_000_000).toLong() else random.nextInt(40_000_000).toLong()
                grid.add(track, last[track], FloatArray(3) { 1f })
                measured[track] += last[track]
            }
            for (time in seen.times) for (track in listOf(0, 2)) {
                val (before, after) = Pair(measured[track].filter { it <= time }.max(), measured[track].filter { it >= time }.min())
                assertTrue(after - before <= 500_000_000, "a row in a gap of ${after - before} ns")
            }
            assertEquals(seen.times.sorted(), seen.times)
        }
    }
}

class WorldFrameTest {
    @Test
    fun `gravity is up however the phone is held`() {
        val random = Random(3)
        val world = WorldFrame()
        repeat(100) { round ->
            val q = DoubleArray(4) { random.nextGaussian() }.let { raw -> raw.map { it / Math.sqrt(raw.sumOf { v -> v * v }) } }
            val (x, y, z, w) = if (q[3] < 0) q.map { -it } else q
            // The third row of the attitude's matrix: the world's z axis along the phone's.
            val up = floatArrayOf((2 * (x * z - w * y)).toFloat(), (2 * (y * z + w * x)).toFloat(), (1 - 2 * (x * x + y * y)).toFloat())
            val vector = listOf(x, y, z, w).map { it.toFloat() }.toFloatArray()
            world.turn(if (round % 2 == 0) vector else vector.copyOf(3)) // older sensors give no real part
            val turned = FloatArray(3)
            world.apply(FloatArray(3) { 9.81f * up[it] }, turned)
            assertContentEquals(floatArrayOf(0f, 0f, 9.81f).map { Math.round(it * 1000) }, turned.map { Math.round(it * 1000) })
        }
    }
}

class LiveWindowsTest {
    @Test
    fun `each stride gives the last samples, channels first, and a gap begins anew`() {
        val (seen, begins) = Pair(ArrayList<Tensor>(), ArrayList<Long>())
        val spec = WindowSpec(listOf("a"), length = 4, stride = 2, rateHz = 50.0, sensors = listOf(RecordedSensor.ACCELEROMETER))
        val live = LiveWindows(spec) { window, beginNs ->
            seen.add(window)
            begins.add(beginNs)
        }
        for (i in 0 until 7) live.row(i * 20_000_000L, floatArrayOf(i.toFloat(), 10f * i, 100f * i))
        assertEquals(listOf(0L, 40_000_000L), begins)
        assertEquals(listOf(1, 3, 4), seen[0].shape)
        val expected = listOf(0, 2).map { from -> listOf(1f, 10f, 100f).flatMap { scale -> (from..from + 3).map { scale * it } } }
        assertEquals(expected, seen.map { it.toFloatArray().toList() })
        live.cut()
        for (i in 0 until 4) live.row(0, floatArrayOf(7f, 7f, 7f))
        assertEquals(3, seen.size)
        assertTrue(seen[2].toFloatArray().all { it == 7f })
    }

    @Test
    fun `a listener that throws ends neither the recording nor the windows, and is logged`() {
        val spec = WindowSpec(listOf("a"), length = 4, stride = 2, rateHz = 50.0, sensors = listOf(RecordedSensor.ACCELEROMETER))
        for (thrown in listOf(ModelUnavailableException("no model"), IllegalStateException("a mistake"))) {
            val (begins, lines, recorded) = Triple(ArrayList<Long>(), ArrayList<String>(), Stretches())
            val live = LiveWindows(spec, { _, message -> lines += message }) { _, beginNs ->
                begins += beginNs
                throw thrown
            }
            val sinks = TwoSinks(recorded, live)
            for (i in 0 until 7) sinks.row(i * 20_000_000L, FloatArray(3))
            assertEquals(listOf(7), recorded.sizes)
            assertEquals(listOf(0L, 40_000_000L), begins)
            assertEquals(2, lines.count { thrown.message!! in it }, "$lines")
        }
    }
}

class RecordingFolderTest {
    @TempDir
    lateinit var folder: File

    private val channels = listOf("a", "b", "c")
    private val classes = listOf("down", "up")

    private fun RecordingFolder.add(samples: Tensor, label: String, startMs: Long = 0) = begin(channels, label, startMs).run {
        val numbers = samples.toFloatArray()
        repeat(samples.rows) { add(FloatArray(3) { axis -> numbers[3 * it + axis] }) }
        end(1)
    }

    @Test
    fun `recordings come back as they were, the oldest go first`() {
        val recordings = RecordingFolder(folder)
        val samples = Tensor.of(FloatArray(30) { it / 7f }, listOf(10, 3))
        recordings.add(samples, "up")
        recordings.add(samples, "down")
        val read = recordings.read(channels, classes)
        assertEquals(listOf(samples, samples), read.map { it.samples })
        assertEquals(listOf(1L, 0L), read.map { it.labels[0] })
        assertEquals(8, windowsOf(read, 4, 2).numTrain)
        val target = System.getProperty("shoal.tests").orEmpty()
        if (target.isNotEmpty()) { // read by Python in tests/android/test_layer.py
            folder.copyRecursively(File(target, "recordings"))
            File(target, "recordings/classes.txt").writeText("down\nup\n")
            val windows = windowsOf(read, 4, 2).trainX
            File(target, "windows.f32").writeBytes(ByteArray(windows.data.limit()).also { windows.data.duplicate().get(it) })
        }
        assertFailsWith<DataException> { recordings.read(listOf("a", "b"), classes) }
        assertFailsWith<DataException> { recordings.read(channels, listOf("down")) }
        recordings.add(samples, "")
        val more = recordings.read(channels, classes)
        assertEquals(List(10) { NO_LABEL }, more.last().labels.toList())
        assertEquals(listOf(8, 4), windowsOf(more, 4, 2).let { listOf(it.numTrain, it.numUnlabelled) })
        recordings.trim(recordings.numBytes() - 1)
        assertEquals(listOf(0L, NO_LABEL), recordings.read(channels, classes).map { it.labels[0] })
    }

    @Test
    fun `what is stored is listed, and what its owner deletes is gone, also while it is written`() {
        val home = Home(folder)
        val recordings = RecordingFolder(home.recordings)
        val stored = StoredRecordings(home, Runnable::run)
        fun listed() = stored.list().get().map { listOf(it.startMs, it.label, it.numSamples) }
        assertEquals(emptyList(), listed())
        assertTrue(stored.delete(0, 1).get(), "there is nothing")
        val samples = Tensor.of(FloatArray(30), listOf(10, 3))
        recordings.add(samples, "up", 1_000)
        recordings.add(Tensor.of(FloatArray(9), listOf(3, 3)), "", 2_000)
        recordings.add(samples, "down", 3_000)
        File(home.recordings, "recording-000004-4000.csv.part").writeText("label,a,b,c\nup,1,2,3\nup,1,") // a kill cut it short
        val open = recordings.begin(channels, "up", 5_000).apply { add(FloatArray(3)) }
        assertEquals(listOf(listOf(1_000L, "up", 10), listOf(2_000L, "", 3), listOf(3_000L, "down", 10), listOf(4_000L, "up", 1)), listed())
        assertEquals(recordings.numBytes(), stored.list().get().sumOf { it.numBytes })
        assertTrue(stored.delete(4_000, 2_000).get(), "a time that ends before it begins")
        assertEquals(4, listed().size)
        assertTrue(stored.delete(2_000, 4_000).get())
        assertEquals(listOf(1_000L, 4_000L), listed().map { it[0] })
        assertTrue(stored.delete(0, Long.MAX_VALUE).get())
        open.add(FloatArray(3))
        open.end(1)
        assertEquals(emptyList(), home.recordings.list()!!.toList())
        recordings.add(samples, "up", 6_000)
        assertEquals(listOf(6_000L), listed().map { it[0] }, "the next one begins as ever")
    }

    @Test
    fun `a job reads past a recording that is deleted meanwhile, and not past a damaged one`() {
        val recordings = RecordingFolder(folder)
        recordings.add(Tensor.of(FloatArray(30), listOf(10, 3)), "up", 1_000)
        Files.createSymbolicLink(File(folder, "recording-000002-2000.csv").toPath(), Path.of("gone"))
        assertEquals(1, recordings.read(channels, classes).size)
        File(folder, "recording-000003-3000.csv").writeText("label,a,b,c\nup,1,2\n")
        assertFailsWith<DataException> { recordings.read(channels, classes) }
    }

    @Test
    fun `a recording that cannot be deleted is said`() {
        val home = Home(folder)
        File(home.recordings, "recording-000001-1000.csv/held").mkdirs()
        assertFalse(StoredRecordings(home, Runnable::run).delete(0, 2_000).get())
    }

    @Test
    fun `what is too old goes`() {
        val recordings = RecordingFolder(folder)
        val samples = Tensor.of(FloatArray(30), listOf(10, 3))
        for (startMs in listOf(1_000L, 2_000L, 3_000L)) recordings.add(samples, "up", startMs)
        recordings.trim(Long.MAX_VALUE, sinceMs = 2_000)
        assertEquals(2, recordings.read(channels, classes).size)
    }

    @Test
    fun `labels that ended before the oldest recording go with the others`() {
        val (home, recordings) = Pair(Home(folder), RecordingFolder(Home(folder).recordings))
        val labels = Labels(home, Runnable::run, { true }, Log.SILENT)
        val options = RecordingOptions(retention = Duration.ofSeconds(10))
        fun left(nowMs: Long): List<String> {
            options.apply(recordings, labels, nowMs)
            return labels.list().get().map { it.label }
        }
        labels.add("up", 0, 12_000)
        labels.add("down", 5_000, 12_001, LabelSource.HINT)
        labels.remove(4_000, 11_000)
        labels.add("up", 30_000, 40_000)
        val all = listOf("up", "up", "down", "up")
        assertEquals(all, left(13_999), "without a recording, retention alone counts")
        assertEquals(all.drop(1), left(14_000))
        val open = recordings.begin(channels, "up", 12_000)
        for (startMs in listOf(13_000L, 14_000L)) recordings.add(Tensor.of(FloatArray(30), listOf(10, 3)), "up", startMs)
        assertEquals(listOf("down", "up"), left(22_000), "the file that is being written counts")
        open.discard()
        assertEquals(listOf("up"), left(22_000))
        val written = home.labels.readText()
        recordings.trim(0)
        assertEquals(listOf("up"), left(49_999))
        assertEquals(written, home.labels.readText())
        assertEquals(emptyList(), left(50_000))
        assertEquals("", home.labels.readText())
    }

    @Test
    fun `a recording that a kill cuts off anywhere is kept up to its last whole row`() {
        val recordings = RecordingFolder(folder)
        recordings.begin(channels, "up", 5_000).run {
            repeat(600) { add(floatArrayOf(it.toFloat(), 0.5f, 1f)) }
            val open = folder.listFiles()!!.single { it.name.endsWith(".part") }
            recordings.recover()
            assertTrue(open.exists(), "one that is being made stays")
            assertTrue(open.length() > 5_000, "it grows on disk while it is made")
            end(1)
        }
        val whole = folder.listFiles()!!.single()
        val bytes = whole.readBytes()
        whole.delete()
        for (length in (0..200) + (bytes.size - 40..bytes.size)) {
            val part = File(folder, whole.name + ".part").apply { writeBytes(bytes.copyOf(length)) }
            recordings.recover()
            assertFalse(part.exists())
            val read = recordings.read(channels, classes)
            val rows = read.sumOf { it.samples.rows }
            assertEquals(maxOf(0, bytes.copyOf(length).count { it == 10.toByte() } - 1), rows)
            folder.listFiles()!!.forEach { it.delete() }
        }
    }

    @Test
    fun `a stream is cut at gaps, labels and ten minutes, and stops where consent ends`() {
        var wanted = true
        val spec = WindowSpec(classes, length = 4, stride = 2, rateHz = 1.0, sensors = listOf(RecordedSensor.ACCELEROMETER))
        val recordings = RecordingFolder(folder)
        fun read() = recordings.read(spec.channels, classes)
        fun stream() = RecordingStream(recordings, spec, "up", 1_000_000_000, Log.SILENT) { wanted }
        val one = stream()
        repeat(10) { one.row(it * SECOND_NS, FloatArray(3)) }
        one.cut()
        repeat(3) { one.row((20 + it) * SECOND_NS, FloatArray(3)) } // shorter than a window
        one.relabel("down")
        repeat(605) { one.row((30 + it) * SECOND_NS, FloatArray(3)) }
        assertEquals(615.0, one.end(keep = true))
        assertEquals(listOf(10, 600, 5), read().map { it.samples.rows })
        assertEquals(listOf(1L, 0L, 0L), read().map { it.labels[0] })
        assertTrue(folder.list()!!.any { it.endsWith("-31000.csv") }, "the name says when it began")
        val two = stream()
        repeat(10) { two.row(it * SECOND_NS, FloatArray(3)) }
        wanted = false
        two.row(10 * SECOND_NS, FloatArray(3))
        assertEquals(0.0, two.end(keep = true))
        assertEquals(3, folder.list()!!.size)
    }

    @Test
    fun `a recording that begins asks for no path on the thread of the app's`() {
        val recordings = RecordingFolder { throw AssertionError("a path on the caller's thread") }
        assertFalse(RecordingStream(recordings, WindowSpec(classes), "up", 0, Log.SILENT) { true }.isOver)
    }

    @Test
    fun `a recording that is forgotten ends by itself, twelve hours after the app's last word`() {
        val spec = WindowSpec(classes, length = 2, stride = 2, rateHz = 1.0, sensors = listOf(RecordedSensor.ACCELEROMETER))
        val stream = RecordingStream(RecordingFolder(folder), spec, "up", 0, Log.SILENT) { true }
        fun minutes(range: IntRange) = range.forEach { stream.row(it * 60 * SECOND_NS, FloatArray(3)) }
        minutes(0..719)
        stream.relabel("up")
        minutes(720..1439)
        assertFalse(stream.isOver)
        minutes(1440..1500)
        assertTrue(stream.isOver)
        assertEquals(1440.0, stream.end(keep = true), "what was recorded before is kept")
    }

    @Test
    fun `a sensor that wakes the processor is used where it has a queue`() {
        fun chosen(wakeUp: Pair<String, Int>?) = chosenSensor(wakeUp, "usual" to 0) { it.second }!!.first
        assertEquals(listOf("wakes", "usual", "usual"), listOf(chosen("wakes" to 3000), chosen("wakes" to 0), chosen(null)))
    }

    @Test
    fun `a rate above 200 Hz needs a permission from Android 12 on`() {
        checkRate(200.0, 36, allowed = false)
        checkRate(400.0, 30, allowed = false)
        checkRate(400.0, 31, allowed = true)
        assertFailsWith<ConfigException> { checkRate(201.0, 31, allowed = false) }
    }

    @Test
    fun `the heart rate needs a permission, which the error names, by version and target`() {
        fun error(sdk: Int, target: Int) = assertFailsWith<ConfigException> { checkHeartRate(listOf(RecordedSensor.HEART_RATE), sdk, target) { false } }.message!!
        for ((sdk, target) in listOf(26 to 36, 35 to 36, 36 to 35)) assertTrue("android.permission.BODY_SENSORS;" in error(sdk, target), "API $sdk, target $target")
        assertTrue("android.permission.health.READ_HEART_RATE;" in error(36, 36))
        checkHeartRate(listOf(RecordedSensor.HEART_RATE), 36, 36) { it.endsWith(".READ_HEART_RATE") }
        checkHeartRate(listOf(RecordedSensor.ACCELEROMETER), 36, 36) { false }
    }
}

class LabelsTest {
    @TempDir
    lateinit var folder: File

    private val classes = listOf("still", "walking")
    private val file get() = File(folder, "labels.txt")

    private fun labels(wanted: () -> Boolean = { true }) = Labels(Home(folder), Runnable::run, wanted, Log.SILENT)

    private fun of(recorded: LongArray = LongArray(10) { NO_LABEL }) = labelled(recorded, 1_000, 1.0, LabelledTime.read(file), classes).toList()

    @Test
    fun `the better source counts, and of one source the later word`() {
        val none = NO_LABEL
        labels().add("walking", 0, 20_000, LabelSource.HINT)
        assertEquals(List(10) { 1L }, of())
        labels().add("still", 3_000, 5_000, LabelSource.PROMPT)
        labels().add("walking", 2_000, 6_000, LabelSource.HINT)
        assertEquals(listOf(1L, 1, 0, 0, 1, 1, 1, 1, 1, 1), of())
        val recorded = LongArray(10) { if (it < 4) 0L else none }
        assertEquals(listOf(0L, 0, 0, 0, 1, 1, 1, 1, 1, 1), of(recorded))
        labels().add("walking", 1_000, 2_000)
        labels().remove(8_000, 99_000)
        labels().add("flying", 2_000, 4_000) // a class that this model does not know
        assertEquals(listOf(1L, 0, 0, 0, 1, 1, 1, none, none, none), of(recorded))
    }

    @Test
    fun `what is removed is gone from disk, and the rest is listed`() {
        labels().add("walking", 0, 10_000)
        labels().add("still", 4_000, 6_000, LabelSource.PROMPT)
        labels().add("still", 20_000, 30_000, LabelSource.HINT)
        assertTrue(labels { false }.remove(3_000, 25_000).get(), "also after a withdrawal")
        assertEquals(listOf("0,3000,APP,walking,", "25000,30000,HINT,still,"), labels().list().get().map { "$it" })
        assertFalse("PROMPT" in file.readText())
    }

    @Test
    fun `a removal leaves what any other time has`() {
        val random = Random(7)
        fun span() = Pair(random.nextInt(12) * 1_000L, 1 + random.nextInt(6) * 1_000L).let { (from, length) -> from to from + length }
        repeat(100) {
            file.delete()
            repeat(random.nextInt(5)) {
                val (from, until) = span()
                labels().add(classes[random.nextInt(2)], from, until, LabelSource.values()[random.nextInt(3)])
            }
            val (from, until) = span()
            val before = LabelledTime.read(file)
            labels().remove(from, until)
            val recorded = LongArray(10) { random.nextInt(3) - 1L }
            assertEquals(labelled(recorded, 1_000, 1.0, before + LabelledTime(from, until, LabelSource.APP, ""), classes).toList(), of(recorded))
        }
    }

    @Test
    fun `a line that a kill cut short says nothing, and the next is whole`() {
        labels().add("walking", 0, 20_000)
        val whole = file.readBytes()
        for (length in 0 until whole.size - 1) {
            file.writeBytes(whole.copyOf(length))
            assertEquals(emptyList(), LabelledTime.read(file).map { "$it" }.filter { it != "0,20000,APP,walking," }, "cut at $length")
            labels().add("still", 0, 20_000)
            assertEquals(List(10) { 0L }, of())
        }
    }

    @Test
    fun `nothing is kept without consent, nor what says nothing`() {
        labels { false }.add("walking", 0, 1)
        assertFalse(file.exists())
        assertFailsWith<IllegalArgumentException> { labels().add("", 0, 1) }
        assertFailsWith<IllegalArgumentException> { labels().add("a,b", 0, 1) }
        assertFailsWith<IllegalArgumentException> { labels().add("walking", 1, 1) }
    }
}
