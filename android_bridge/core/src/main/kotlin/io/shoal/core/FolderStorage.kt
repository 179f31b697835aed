package io.shoal.core

import io.shoal.core.secret.AnswerStore
import io.shoal.core.wire.Fields
import io.shoal.core.wire.Limits
import io.shoal.core.wire.Pieces
import io.shoal.core.wire.decodeTensors
import io.shoal.core.wire.digest as sha256
import io.shoal.core.wire.encodeTensors
import io.shoal.core.wire.jsonText
import io.shoal.core.wire.parseJson
import java.io.File
import java.io.IOException
import java.io.RandomAccessFile
import java.nio.file.Files
import java.util.Locale
import java.util.TreeMap

/**
 * [Storage] in a folder of its own, with the files `device.json session.json start.json update checkpoint
 * private.RUN.ROUND current before failures traffic.json stream.json questions.json answers blobs/SHA256 blobs/SHA256.part`.
 * `session.json` has its hash in its second line, blobs have it in their names, and all other files
 * begin with the SHA-256 of the rest. A damaged file is deleted, with a line in the [log], but for `answers`.
 *
 * @param owner device that must own the folder, whose model and private tensors were made from that
 *   device's data; null for no check
 * @throws StorageException the folder cannot be created or written
 * @throws ConfigException it is another device's
 */
@InternalShoalApi
public class FolderStorage @JvmOverloads constructor(private val folder: File, private val log: Log = Log.SILENT, owner: Owner? = null) : Storage {
    private val blobs = File(folder, "blobs")
    private val ownerFile = File(folder, "device.json")
    private val sessionFile = File(folder, "session.json")
    private val startFile = File(folder, "start.json")
    private val updateFile = File(folder, "update")
    private val currentFile = File(folder, "current")
    private val beforeFile = File(folder, "before")
    private val failuresFile = File(folder, "failures")
    private val checkpointFile = File(folder, "checkpoint")
    private val trafficFile = File(folder, "traffic.json")
    private val streamFile = File(folder, "stream.json")
    private val questionsFile = File(folder, "questions.json")
    private val answersFile = File(folder, "answers")
    private val surveysFile = File(folder, "surveys")

    init {
        if (!blobs.isDirectory && !blobs.mkdirs() || !blobs.canWrite()) throw StorageException("state folder $folder: cannot be created or written")
        owner?.let(::claim)
    }

    /** Store the owner. A failed write is logged only: the client starts with a full disk, too. */
    private fun claim(owner: Owner) {
        val file = readAs(ownerFile, "its owner is stored again") {
            Fields(parseJson(checked(it)), "device").run { Pair(Owner(string("device_id"), string("fleet")), positive("format", FORMAT)) }
        }
        if (file != null && file.second != FORMAT) {
            throw ConfigException(
                "state folder $folder has format ${file.second}, and this client reads format $FORMAT; use another folder, or empty this one",
            )
        }
        val stored = file?.first
        if (stored != null && stored != owner) {
            throw ConfigException(
                "state folder $folder belongs to $stored, and this is $owner, which must not use another device's model and memory; " +
                    "use another folder, or empty this one",
            )
        }
        if (stored == owner) return
        try {
            writeChecked(ownerFile, jsonText(mapOf("device_id" to owner.deviceId, "fleet" to owner.fleet, "format" to FORMAT)).toByteArray())
        } catch (error: IOException) {
            log.write(Log.Level.WARNING, "Owner of the state folder not stored: folder=$folder: $error")
        }
    }

    /**
     * Return the session, or a new one if the file was damaged. Only a finished update and the
     * versions of used bundles are lost by that.
     */
    override fun session(): Session = readAs(sessionFile, "the device starts anew", ::decodeSession) ?: Session()

    override fun save(session: Session): Unit = writeAtomically(sessionFile, encodeSession(session))

    override fun start(): Start {
        val first = !startFile.exists()
        val last = readAs(startFile, "starts are counted anew") {
            Fields(parseJson(checked(it)), "start").run { Start(count("number"), count("instance"), bool("is_refused", false)) }
        }
        return last ?: if (first) Start() else Start.DAMAGED
    }

    override fun saveStart(start: Start): Unit =
        writeChecked(startFile, jsonText(linkedMapOf("number" to start.number, "instance" to start.instance, "is_refused" to start.refused)).toByteArray())

    override fun blob(digest: String): ByteArray? = readAs(File(blobs, digest), "it is fetched again") { payload ->
        if (sha256(payload) != digest) throw MalformedException("its SHA-256 is ${sha256(payload)}")
        payload
    }

    override fun hasBlob(digest: String): Boolean = File(blobs, digest).exists()

    override fun putBlob(digest: String, payload: ByteArray): Unit = writeAtomically(File(blobs, digest), payload)

    override fun part(pieces: Pieces): BlobPart = PartFile(File(blobs, pieces.digest + PART), pieces)

    override fun finish(part: BlobPart): Boolean = (part as PartFile).finish(File(blobs, part.pieces.digest))

    override fun keepBlobs(digests: Set<String>): Unit = filesIn(blobs).filter { it.name.removeSuffix(PART) !in digests }.forEach(::delete)

    override fun putUpdate(runId: String, round: Long, payload: ByteArray, private: Tensors) {
        val name = "private.%s.%08d".format(Locale.ROOT, runId, round)
        if (private.isNotEmpty()) writeChecked(File(folder, name), encodeTensors(private))
        writeChecked(updateFile, payload)
        privateFiles(runId, round).dropLast(2).forEach(::delete)
        deleteOldRuns()
    }

    override fun update(): ByteArray? = readAs(updateFile, "its plan is carried out again", ::checked)

    override fun updateSize(): Long = maxOf(0, updateFile.length() - DIGEST_BYTES)

    override fun updatePart(offset: Long, size: Int): ByteArray =
        RandomAccessFile(updateFile, "r").use { it.part(DIGEST_BYTES + offset, size) }

    override fun dropUpdate(): Unit = delete(updateFile)

    override fun checkpoint(): ByteArray? = readAs(checkpointFile, "the plan starts again", ::checked)

    override fun putCheckpoint(payload: ByteArray) {
        try {
            writeChecked(checkpointFile, payload)
        } catch (error: IOException) { // a partial file must not fill the disk further
            delete(File(checkpointFile.path + NEW))
            throw error
        }
    }

    override fun dropCheckpoint() {
        delete(checkpointFile)
        delete(File(checkpointFile.path + NEW))
    }

    override fun private(runId: String, round: Long): Tensors = privateFiles(runId, round - 1).asReversed().firstNotNullOfOrNull { file ->
        readAs(file, "the private tensors of an earlier round are used, or new ones") { decodeTensors(checked(it), Limits.OWN_FILES).tensors }
    }.orEmpty()

    override fun current(): Current? = currentIn(currentFile, "the model before it answers") ?: before()

    override fun before(): Current? = currentIn(beforeFile, "there is no model to go back to")

    private fun currentIn(file: File, follows: String): Current? = readAs(file, follows) {
        val (private, text) = decodeTensors(checked(it), Limits.OWN_FILES)
        val f = Fields(parseJson(text.toByteArray()), "current")
        Current(
            f.digest("bundle"), f.digest("model"), f.string("run"), private, f.count("release", 0), f.string("group", ""),
            f.maybeDigest("personal_model"), f.string("alone", ""), f.double("since_s"), f.string("back", ""),
        )
    }

    override fun saveCurrent(current: Current) {
        if (currentIn(currentFile, "the model before it stays") != null) writeAtomically(beforeFile, currentFile.readBytes())
        delete(failuresFile)
        writeCurrent(current)
    }

    /**
     * Delete what was learned from the device's windows: private tensors, personal models, a
     * finished update, the plan and its checkpoint, the length of activities, the stretches to ask
     * about, the last answer of a secret sum. The model in use stays, without its personal model,
     * and so do the numbers by which older bundles and releases are recognised, and the digests of
     * answered questions. Any device may use the rest of the folder.
     */
    public fun erase() {
        val (before, model) = Pair(session(), current())
        model?.let { writeCurrent(Current(it.bundle, it.model, it.run, emptyMap(), it.release, it.group)) }
        val session = Session(
            versions = before.versions,
            offeredEpoch = before.offeredEpoch,
            released = before.released,
            releasedEpoch = before.releasedEpoch,
        )
        save(session)
        dropUpdate()
        dropCheckpoint()
        delete(ownerFile)
        delete(beforeFile)
        delete(streamFile)
        delete(questionsFile)
        AnswerStore(this).forgetLast()
        privateFiles().values.flatMap { it.values }.forEach(::delete)
        keepBlobs(setOfNotNull(model?.bundle, model?.model))
    }

    private fun writeCurrent(current: Current) {
        val about = linkedMapOf("bundle" to current.bundle, "model" to current.model, "run" to current.run, "group" to current.group)
        val more = linkedMapOf("release" to current.release, "personal_model" to current.personalModel, "alone" to current.alone)
        val text = jsonText(about + more + linkedMapOf("since_s" to current.sinceS, "back" to current.back))
        writeChecked(currentFile, encodeTensors(current.private, text))
    }

    override fun failures(): Long = readAs(failuresFile, "failures are counted from 0") { payload ->
        checked(payload).decodeToString().toLongOrNull() ?: throw MalformedException("its content is not a number")
    } ?: 0

    override fun saveFailures(count: Long): Unit = writeChecked(failuresFile, count.toString().toByteArray())

    override fun stream(bundle: String): StreamSums = readAs(streamFile, "the length of activities is learnt anew") {
        Fields(parseJson(checked(it)), "stream").run { StreamSums(digest("bundle"), sum("stays"), sum("changes")) }
    }?.takeIf { it.bundle == bundle } ?: StreamSums(bundle)

    private fun Fields.sum(key: String) = double(key, expected = "a number from 0 on", allowed = { it >= 0 && it < Double.POSITIVE_INFINITY })

    override fun saveStream(sums: StreamSums): Unit =
        writeChecked(streamFile, jsonText(mapOf("bundle" to sums.bundle, "stays" to sums.stays, "changes" to sums.changes)).toByteArray())

    override fun questions(): Questions = readAs(questionsFile, "stretches to ask about are collected anew") { payload ->
        val stored = Fields(parseJson(checked(payload)), "questions")
        val stretches = stored.list("stretches") { item, path ->
            Fields(item, path).run { Question(double("begin_s"), double("end_s"), positive("windows"), string("label")) }
        }
        Questions(stretches, stored.doubleOrNull("last_s", "a number") { true })
    } ?: Questions()

    override fun saveQuestions(questions: Questions) {
        val stretches = questions.stretches.map { mapOf("begin_s" to it.beginS, "end_s" to it.endS, "windows" to it.windows, "label" to it.label) }
        writeChecked(questionsFile, jsonText(mapOf("stretches" to stretches, "last_s" to questions.lastS)).toByteArray())
    }

    override fun answers(): ByteArray? = if (answersFile.exists()) checked(Files.readAllBytes(answersFile.toPath())) else null

    override fun saveAnswers(payload: ByteArray): Unit = writeChecked(answersFile, payload)

    override fun surveys(): ByteArray? = if (surveysFile.exists()) checked(Files.readAllBytes(surveysFile.toPath())) else null

    override fun saveSurveys(payload: ByteArray): Unit = writeChecked(surveysFile, payload)

    override fun traffic(): Map<Long, Long> = readAs(trafficFile, "bytes are counted from 0") {
        val hours = Fields(parseJson(checked(it)), "traffic").map("hours") { bytes, path -> Fields.countOf(bytes, path) }
        hours.mapKeys { (hour, _) -> hour.toLongOrNull() ?: throw MalformedException("'$hour' is not an hour") }
    }.orEmpty()

    override fun saveTraffic(hours: Map<Long, Long>): Unit =
        writeChecked(trafficFile, jsonText(mapOf("hours" to hours.mapKeys { it.key.toString() })).toByteArray())

    /** Return the files of a run's private tensors up to a round, the earliest first. */
    private fun privateFiles(runId: String, upTo: Long): List<File> = privateFiles()[runId].orEmpty().filterKeys { it <= upTo }.values.toList()

    /** Return all files of private tensors, by run and round. */
    private fun privateFiles(): Map<String, Map<Long, File>> {
        val files = HashMap<String, TreeMap<Long, File>>()
        for (file in filesIn(folder)) {
            val (run, round) = PRIVATE.matchEntire(file.name)?.destructured ?: continue
            files.getOrPut(run) { TreeMap() }[round.toLong()] = file
        }
        return files
    }

    /** Delete the private tensors of all but the last few runs. */
    private fun deleteOldRuns() {
        val runs = privateFiles().values.sortedByDescending { files -> files.values.maxOf { it.lastModified() } }
        runs.drop(KEPT_RUNS).flatMap { it.values }.forEach(::delete)
    }

    private fun filesIn(folder: File): List<File> = folder.listFiles()?.toList() ?: throw IOException("$folder cannot be read")

    /**
     * Return the result of [read] on a file, or null if it is missing or damaged. A damaged file is
     * deleted, with a warning that ends with [follows].
     */
    private fun <T> readAs(file: File, follows: String, read: (ByteArray) -> T): T? {
        if (!file.exists()) return null
        return try {
            read(Files.readAllBytes(file.toPath()))
        } catch (_: java.nio.file.NoSuchFileException) {
            null // another thread deleted it
        } catch (error: WireException) {
            damaged(file, follows, error)
        } catch (error: IOException) {
            damaged(file, follows, error)
        }
    }

    private fun damaged(file: File, follows: String, error: Exception): Nothing? {
        if (!file.exists()) return null // another thread forgot it meanwhile
        log.write(Log.Level.WARNING, "File is damaged and deleted, $follows: file=$file: ${error.message}")
        delete(file)
        return null
    }

    private fun writeChecked(file: File, payload: ByteArray) = writeAtomically(file, sha256(payload).toByteArray() + payload)

    private fun checked(content: ByteArray): ByteArray {
        val payload = if (content.size < DIGEST_BYTES) content else content.copyOfRange(DIGEST_BYTES, content.size)
        if (!content.copyOf(DIGEST_BYTES).contentEquals(sha256(payload).toByteArray())) throw MalformedException("its SHA-256 does not fit")
        return payload
    }

    private fun delete(file: File) {
        Files.deleteIfExists(file.toPath())
    }

    private companion object {
        /**
         * Name of a file of private tensors. The round has at least eight digits, so that names
         * sort by round.
         */
        val PRIVATE = Regex("private\\.(.+)\\.([0-9]{8,18})")

        /** Number of runs whose private tensors stay stored. */
        const val KEPT_RUNS = 4

        /** Format of state folders that this client reads and writes. */
        const val FORMAT = 1L
        const val DIGEST_BYTES = 64
        const val PART = ".part"
        const val NEW = ".new"
    }
}
