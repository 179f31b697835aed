package io.shoal.core.wire

import io.shoal.core.MalformedException

/** Return the fields of a message for the wire, in the order of `wire/messages.py`. */
internal fun fieldsOf(message: Message): Map<String, Any?> = linkedMapOf<String, Any?>("type" to message.type) + when (message) {
    is CheckIn -> linkedMapOf(
        "device_id" to message.deviceId,
        "num_train" to message.numTrain,
        "num_test" to message.numTest,
        "bundle" to message.bundle,
        "client" to message.client,
        "runtime" to message.runtime,
        "battery_percent" to message.batteryPercent,
        "unmetered" to message.unmetered,
        "policy" to message.policy?.let(::fieldsOf),
        "hardware" to message.hardware,
        "free_bytes" to message.freeBytes,
        "temperature_c" to message.temperatureC,
        "charging" to message.charging,
        "idle" to message.idle,
        "classes" to message.classes,
        "moved" to message.moved,
        "encodings" to message.encodings,
        "num_unlabelled" to message.numUnlabelled,
        "personal_models" to message.personalModels,
        "protocol" to message.protocol,
        "app" to message.app,
        "start" to message.start,
        "instance" to message.instance,
    )
    is ErrorReport -> fieldsOf(message)
    is Fetch -> linkedMapOf("device_id" to message.deviceId, "digest" to message.digest)
    is Pieces -> linkedMapOf(
        "digest" to message.digest,
        "num_bytes" to message.numBytes,
        "piece_bytes" to message.pieceBytes,
        "pieces" to message.pieces,
    )
    is UpdateOffer -> linkedMapOf(
        "device_id" to message.deviceId,
        "run_id" to message.runId,
        "round" to message.round,
        "pieces" to fieldsOf(message.pieces),
    )
    is Piece -> linkedMapOf("device_id" to message.deviceId, "update" to message.update, "index" to message.index.toLong())
    is Want -> linkedMapOf("device_id" to message.deviceId, "update" to message.update, "pieces" to message.pieces.map { it.toLong() })
    is DeviceStatus -> linkedMapOf("device_id" to message.deviceId, "online" to message.online, "withdrawn" to message.withdrawn, "at_s" to message.atS)
    is Update -> linkedMapOf(
        "run_id" to message.runId,
        "epoch" to message.epoch,
        "round" to message.round,
        "attempt" to message.attempt,
        "device_id" to message.deviceId,
        "model" to message.model,
        "num_train" to message.numTrain,
        "num_steps" to message.numSteps,
        "evaluated" to fieldsOf(message.evaluated),
        "trained" to fieldsOf(message.trained),
        "bytes_received" to message.bytesReceived,
        "train_s" to message.trainS,
        "share" to message.share?.let(::fieldsOf),
        "node" to message.node,
    )
    is Decline -> linkedMapOf(
        "run_id" to message.runId,
        "epoch" to message.epoch,
        "round" to message.round,
        "attempt" to message.attempt,
        "device_id" to message.deviceId,
        "reason" to message.reason.text,
        "detail" to message.detail,
        "proof" to message.proof,
    )
    is Plan -> linkedMapOf(
        "run_id" to message.runId,
        "epoch" to message.epoch,
        "round" to message.round,
        "attempt" to message.attempt,
        "device_id" to message.deviceId,
        "bundle" to message.bundle,
        "model" to message.model,
        "verbs" to message.verbs.map(::fieldsOf),
        "seed" to message.seed,
        "deadline_at_s" to message.deadlineAtS,
        "encoding" to message.encoding,
    )
    is Acknowledge -> linkedMapOf("device_id" to message.deviceId, "update" to message.update)
    is Refuse -> linkedMapOf(
        "device_id" to message.deviceId,
        "reason" to message.reason,
        "detail" to message.detail,
        "about" to message.about,
        "update" to message.update,
        "instance" to message.instance,
    )
    is Busy -> linkedMapOf("device_id" to message.deviceId, "update" to message.update, "retry_s" to message.retryS)
    is Finish -> linkedMapOf(
        "device_id" to message.deviceId,
        "run_id" to message.runId,
        "epoch" to message.epoch,
        "bundle" to message.bundle,
        "model" to message.model,
        "releases" to message.releases,
        "number" to message.number,
    )
    is InUse -> linkedMapOf(
        "device_id" to message.deviceId,
        "number" to message.number,
        "offered" to message.offered,
        "problem" to message.problem,
        "evaluated" to fieldsOf(message.evaluated),
        "before" to fieldsOf(message.before),
        "latency_ms" to message.latencyMs,
        "failures" to message.failures,
        "alone" to message.alone,
        "model" to message.model,
    )
    is Release -> linkedMapOf(
        "device_id" to message.deviceId,
        "epoch" to message.epoch,
        "number" to message.number,
        "group" to message.group,
        "run_id" to message.runId,
        "bundle" to message.bundle,
        "model" to message.model,
    )
    is AggregatorStatus -> linkedMapOf(
        "online" to message.online,
        "boot_id" to message.bootId,
        "epoch" to message.epoch,
        "at_s" to message.atS,
        "run_id" to message.runId,
        "paused" to message.paused,
    )
    is Voucher -> linkedMapOf("fleet" to message.fleet, "key" to message.key, "not_after_s" to message.notAfterS)
}

/** Return the fields of an error report, without its type. */
internal fun fieldsOf(report: ErrorReport): Map<String, Any?> = linkedMapOf(
    "device_id" to report.deviceId,
    "at_s" to report.atS,
    "what" to report.what,
    "error" to report.error,
    "message" to report.message,
    "frames" to report.frames,
    "client" to report.client,
    "app" to report.app,
    "peak_bytes" to report.peakBytes,
    "memory_bytes" to report.memoryBytes,
)

internal fun fieldsOf(metrics: Metrics) =
    linkedMapOf("num_examples" to metrics.numExamples, "loss_sum" to metrics.lossSum, "num_correct" to metrics.numCorrect)

/** Parse a message of any type, with the checks of `wire/messages.py`. */
internal fun messageOf(f: Fields): Message = when (val type = f.string("type")) {
    "check-in" -> CheckIn(
        deviceId = f.name("device_id"),
        numTrain = f.count("num_train"),
        numTest = f.count("num_test"),
        bundle = f.maybeDigest("bundle"),
        client = f.text("client", ""),
        runtime = f.text("runtime", ""),
        batteryPercent = f.doubleOrNull("battery_percent", "0 to 100") { it in 0.0..100.0 },
        unmetered = f.boolOrNull("unmetered"),
        policy = f.objectOrNull("policy", ::policyOf),
        hardware = f.text("hardware", ""),
        freeBytes = f.intOrNull("free_bytes", Fields.COUNT),
        temperatureC = f.doubleOrNull("temperature_c", "-100 to 300") { it in -100.0..300.0 },
        charging = f.boolOrNull("charging"),
        idle = f.boolOrNull("idle"),
        classes = f.countsOrNull("classes", CheckIn.MOST_CLASSES),
        moved = f.bool("moved", false),
        encodings = f.namesOrNone("encodings", CheckIn.MOST_ENCODINGS),
        numUnlabelled = f.count("num_unlabelled", 0),
        personalModels = f.digestsOrNull("personal_models", CheckIn.MOST_HELD),
        protocol = f.text("protocol", ""),
        app = f.text("app", ""),
        start = f.count("start", 0),
        instance = f.count("instance", 0),
    )
    "error" -> errorReportOf(f)
    "fetch" -> Fetch(f.name("device_id"), f.digest("digest"))
    "pieces" -> piecesOf(f)
    "offer" -> UpdateOffer(f.name("device_id"), f.name("run_id"), f.positive("round"), piecesOf(f.obj("pieces")))
    "piece" -> Piece(f.name("device_id"), f.digest("update"), f.int("index", INDEXES).toInt())
    "want" -> Want(f.name("device_id"), f.digest("update"), f.list("pieces", item = ::indexOf).also { checkCount(it.size, 0) })
    "status" -> DeviceStatus(f.name("device_id"), f.bool("online"), f.randomBits("withdrawn"), f.double("at_s", 0.0))
    "update" -> Update(
        runId = f.name("run_id"),
        epoch = f.count("epoch"),
        round = f.positive("round"),
        attempt = f.count("attempt"),
        deviceId = f.name("device_id"),
        model = f.digest("model"),
        numTrain = f.count("num_train"),
        numSteps = f.count("num_steps"),
        evaluated = metricsOf(f.obj("evaluated")),
        trained = metricsOf(f.obj("trained")),
        bytesReceived = f.count("bytes_received", 0),
        trainS = f.double("train_s", 0.0),
        share = f.objectOrNull("share", ::signedShareOf),
        node = nodeIn(f, "node", ""),
    )
    "decline" -> Decline(
        runId = f.name("run_id"),
        epoch = f.count("epoch"),
        round = f.positive("round"),
        attempt = f.count("attempt"),
        deviceId = f.name("device_id"),
        reason = f.oneOf("reason", DECLINES.keys).let(DECLINES::getValue),
        detail = f.text("detail"),
        proof = f.text("proof", "", PLAN_BYTES),
    )
    "plan" -> Plan(
        runId = f.name("run_id"),
        epoch = f.count("epoch"),
        round = f.positive("round"),
        attempt = f.count("attempt"),
        deviceId = f.name("device_id"),
        bundle = f.digest("bundle"),
        model = f.digest("model"),
        verbs = f.list("verbs") { it, path -> verbOf(Fields(it, path), path) },
        seed = f.count("seed"),
        deadlineAtS = f.double("deadline_at_s"),
        encoding = f.oneOf("encoding", ENCODINGS, "float32"),
    )
    "acknowledge" -> Acknowledge(f.name("device_id"), f.digest("update"))
    "refuse" -> Refuse(
        deviceId = f.name("device_id"),
        reason = f.oneOf("reason", REASONS),
        detail = f.text("detail"),
        about = f.text("about", ""),
        update = f.maybeDigest("update"),
        instance = f.count("instance", 0),
    )
    "busy" -> Busy(f.name("device_id"), f.digest("update"), f.double("retry_s", expected = "0 to 3600") { it in 0.0..3600.0 })
    "finish" -> Finish(
        deviceId = f.name("device_id"),
        runId = f.name("run_id"),
        epoch = f.count("epoch"),
        bundle = f.digest("bundle"),
        model = f.digest("model"),
        releases = f.bool("releases", false),
        number = f.count("number", 0),
    )
    "in-use" -> InUse(
        deviceId = f.name("device_id"),
        number = f.count("number", 0),
        offered = f.count("offered", 0),
        problem = f.text("problem", ""),
        evaluated = f.metrics("evaluated"),
        before = f.metrics("before"),
        latencyMs = f.double("latency_ms", 0.0),
        failures = f.count("failures", 0),
        alone = f.text("alone", ""),
        model = f.maybeDigest("model"),
    )
    "release" -> Release(
        deviceId = f.name("device_id"),
        epoch = f.count("epoch"),
        number = f.positive("number"),
        group = f.text("group"),
        runId = f.name("run_id"),
        bundle = f.digest("bundle"),
        model = f.digest("model"),
    )
    "aggregator" -> AggregatorStatus(
        online = f.bool("online"),
        bootId = f.text("boot_id"),
        epoch = f.count("epoch"),
        atS = f.double("at_s"),
        runId = f.text("run_id", ""),
        paused = f.text("paused", ""),
    )
    "voucher" -> Voucher(f.name("fleet"), f.digest("key"), f.double("not_after_s"))
    else -> throw MalformedException("message: unknown type '${type.take(80)}'")
}

/** Parse the identity of a plan, whatever else the plan has. */
internal fun planHeadOf(f: Fields): PlanHead {
    val type = f.string("type")
    if (type != "plan") throw MalformedException("plan of type ${type.take(80)}")
    return PlanHead(f.name("device_id"), f.name("run_id"), f.count("epoch"), f.positive("round"), f.count("attempt"))
}

internal fun errorReportOf(f: Fields) = ErrorReport(
    deviceId = f.name("device_id"),
    atS = f.double("at_s"),
    what = f.text("what"),
    error = f.text("error"),
    message = f.text("message", ""),
    frames = f.texts("frames", ErrorReport.MOST_FRAMES),
    client = f.text("client", ""),
    app = f.text("app", ""),
    peakBytes = f.intOrNull("peak_bytes", Fields.COUNT),
    memoryBytes = f.intOrNull("memory_bytes", Fields.COUNT),
)

private val ENCODINGS = setOf("float32", "int8")

private val INDEXES = 0L until MOST_PIECES

private fun piecesOf(f: Fields): Pieces {
    val type = f.string("type", "pieces")
    if (type != "pieces") throw MalformedException("pieces of type $type")
    val pieces = f.list("pieces") { value, path ->
        (value as? JsonString)?.value?.takeIf(::isDigest) ?: throw MalformedException("$path: expected a SHA-256")
    }
    checkCount(pieces.size, 1)
    return Pieces(f.digest("digest"), f.positive("num_bytes"), f.int("piece_bytes", (1L shl 10)..(1L shl 22)), pieces)
}

private fun checkCount(count: Int, least: Int) {
    if (count !in least..MOST_PIECES) throw MalformedException("$count pieces: expected $least to $MOST_PIECES")
}

private fun indexOf(value: Json, path: String): Int =
    Fields.countOf(value, path).takeIf { it in INDEXES }?.toInt() ?: throw MalformedException("$path: expected a piece")

internal fun metricsOf(f: Fields) = Metrics(f.count("num_examples", 0), f.double("loss_sum", 0.0), f.count("num_correct", 0))

/** Return metrics, which are empty if the key is missing. */
internal fun Fields.metrics(key: String): Metrics = if (has(key)) metricsOf(obj(key)) else Metrics()

private val REASONS = setOf(
    "unknown-topic", "unknown-device", "second-device", "malformed", "too-large", "wrong-device", "unknown-run", "wrong-round", "not-in-cohort",
    "duplicate", "wrong-layout", "not-finite", "norm-too-large", "unknown-blob",
)

private val DECLINES = DeclineReason.entries.associateBy { it.text }
