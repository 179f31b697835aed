package io.shoal.core.wire

import io.shoal.core.Malformed

/** What a message looks like on the wire: one place for writing and reading, in the order and with the checks of `wire/messages.py`. */
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
    )
    is Fetch -> linkedMapOf("device_id" to message.deviceId, "digest" to message.digest)
    is DeviceStatus -> linkedMapOf("device_id" to message.deviceId, "online" to message.online)
    is Update -> linkedMapOf(
        "run_id" to message.runId,
        "round" to message.round,
        "device_id" to message.deviceId,
        "model" to message.model,
        "num_train" to message.numTrain,
        "num_steps" to message.numSteps,
        "evaluated" to fieldsOf(message.evaluated),
        "trained" to fieldsOf(message.trained),
        "bytes_received" to message.bytesReceived,
        "train_s" to message.trainS,
    )
    is Decline -> linkedMapOf(
        "run_id" to message.runId,
        "round" to message.round,
        "device_id" to message.deviceId,
        "detail" to message.detail,
    )
    is Plan -> linkedMapOf(
        "run_id" to message.runId,
        "round" to message.round,
        "device_id" to message.deviceId,
        "bundle" to message.bundle,
        "model" to message.model,
        "verbs" to message.verbs.map(::fieldsOf),
        "seed" to message.seed,
        "deadline_at_s" to message.deadlineAtS,
    )
    is Acknowledge -> linkedMapOf("run_id" to message.runId, "round" to message.round)
    is Refuse -> linkedMapOf(
        "reason" to message.reason,
        "detail" to message.detail,
        "run_id" to message.runId,
        "round" to message.round,
        "about" to message.about,
    )
    is Finish -> linkedMapOf("run_id" to message.runId, "bundle" to message.bundle, "model" to message.model)
    is AggregatorStatus -> linkedMapOf("online" to message.online, "boot_id" to message.bootId, "run_id" to message.runId)
}

private fun fieldsOf(metrics: Metrics) =
    linkedMapOf("num_examples" to metrics.numExamples, "loss_sum" to metrics.lossSum, "num_correct" to metrics.numCorrect)

private fun fieldsOf(verb: Verb): Map<String, Any?> = linkedMapOf<String, Any?>("type" to verb.type) + when (verb) {
    is Train -> linkedMapOf(
        "batch_size" to verb.batchSize,
        "epochs" to verb.epochs,
        "steps" to verb.steps,
        "hyper" to verb.hyper,
        "graph" to verb.graph,
        "report" to verb.report,
        "holdout" to verb.holdout,
    )
    is Evaluate -> linkedMapOf(
        "split" to verb.split,
        "graph" to verb.graph,
        "model" to verb.model,
        "holdout" to verb.holdout,
        "report" to verb.report,
    )
    is Choose -> linkedMapOf("models" to verb.models, "graph" to verb.graph)
    is Annotate -> linkedMapOf("graph" to verb.graph, "column" to verb.column)
    is Apply -> linkedMapOf("graph" to verb.graph)
    is Respond -> linkedMapOf("inputs" to verb.inputs, "graph" to verb.graph)
    is Protect -> linkedMapOf("clip_norm" to verb.clipNorm, "noise_std" to verb.noiseStd)
}

/** Reads a message of any type. */
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
    )
    "fetch" -> Fetch(f.name("device_id"), f.digest("digest"))
    "status" -> DeviceStatus(f.name("device_id"), f.bool("online"))
    "update" -> Update(
        runId = f.name("run_id"),
        round = f.positive("round"),
        deviceId = f.name("device_id"),
        model = f.digest("model"),
        numTrain = f.count("num_train"),
        numSteps = f.count("num_steps"),
        evaluated = metricsOf(f.obj("evaluated")),
        trained = metricsOf(f.obj("trained")),
        bytesReceived = f.count("bytes_received", 0),
        trainS = f.double("train_s", 0.0),
    )
    "decline" -> Decline(f.name("run_id"), f.positive("round"), f.name("device_id"), f.text("detail"))
    "plan" -> Plan(
        runId = f.name("run_id"),
        round = f.positive("round"),
        deviceId = f.name("device_id"),
        bundle = f.digest("bundle"),
        model = f.digest("model"),
        verbs = f.list("verbs") { it, path -> verbOf(Fields(it, path), path) },
        seed = f.count("seed"),
        deadlineAtS = f.double("deadline_at_s"),
    )
    "acknowledge" -> Acknowledge(f.name("run_id"), f.positive("round"))
    "refuse" -> Refuse(f.oneOf("reason", REASONS), f.text("detail"), f.text("run_id", ""), f.count("round", 0), f.text("about", ""))
    "finish" -> Finish(f.name("run_id"), f.digest("bundle"), f.digest("model"))
    "aggregator" -> AggregatorStatus(f.bool("online"), f.text("boot_id"), f.text("run_id", ""))
    else -> throw Malformed("message: unknown type '${type.take(80)}'")
}

private fun metricsOf(f: Fields) = Metrics(f.count("num_examples", 0), f.double("loss_sum", 0.0), f.count("num_correct", 0))

private fun verbOf(f: Fields, path: String): Verb = when (val type = f.string("type")) {
    "train" -> Train(
        batchSize = f.int("batch_size", 2L..4096).toInt(),
        epochs = f.int("epochs", 1L..10_000, 1).toInt(),
        steps = f.intOrNull("steps", Fields.POSITIVE),
        hyper = f.doubles("hyper", emptyMap()),
        graph = f.name("graph", "step"),
        report = f.bool("report", true),
        holdout = f.share("holdout"),
    )
    "evaluate" -> Evaluate(
        split = f.oneOf("split", listOf("train", "test", "holdout"), "test"),
        graph = f.name("graph", "evaluate"),
        model = f.oneOf("model", listOf("received", "initial"), "received"),
        holdout = f.share("holdout"),
        report = f.bool("report", true),
    )
    "choose" -> {
        val models = f.list("models") { it, at ->
            (it as? JsonString)?.value?.takeIf(::isDigest) ?: throw Malformed("$at: expected a SHA-256")
        }
        if (models.size !in 1..64) throw Malformed("$path.models: ${models.size} models, expected 1 to 64")
        Choose(models, f.name("graph", "evaluate"))
    }
    "annotate" -> Annotate(f.name("graph"), f.name("column"))
    "apply" -> Apply(f.name("graph"))
    "respond" -> Respond(f.digest("inputs"), f.name("graph", "predict"))
    "protect" -> Protect(
        clipNorm = f.double("clip_norm", expected = "above 0") { it > 0 },
        noiseStd = f.double("noise_std", 0.0, "at least 0") { it >= 0 },
    )
    else -> throw Malformed("$path: unknown verb '${type.take(80)}'")
}

private val REASONS = setOf(
    "unknown-topic", "malformed", "too-large", "wrong-device", "unknown-run", "wrong-round", "not-in-cohort", "duplicate",
    "wrong-layout", "not-finite", "norm-too-large", "unknown-blob", "stale-bundle",
)
