package io.shoal.core.wire

import io.shoal.core.MalformedException

/** Return the fields of a verb within a plan; see [messageOf]. */
internal fun fieldsOf(verb: Verb): Map<String, Any?> = linkedMapOf<String, Any?>("type" to verb.type) + when (verb) {
    is Train -> linkedMapOf(
        "batch_size" to verb.batchSize,
        "epochs" to verb.epochs,
        "steps" to verb.steps,
        "hyper" to verb.hyper,
        "graph" to verb.graph,
        "report" to verb.report,
        "holdout" to verb.holdout,
        "least" to verb.least,
        "most_passes" to verb.mostPasses,
    )
    is Evaluate -> linkedMapOf(
        "split" to verb.split,
        "graph" to verb.graph,
        "model" to verb.model,
        "holdout" to verb.holdout,
        "report" to verb.report,
        "most" to verb.most,
    )
    is Choose -> linkedMapOf("models" to verb.models, "graph" to verb.graph)
    is Annotate -> linkedMapOf("graph" to verb.graph, "column" to verb.column)
    is Apply -> linkedMapOf("graph" to verb.graph, "report" to verb.report)
    is Respond -> linkedMapOf("inputs" to verb.inputs, "graph" to verb.graph)
    is Protect -> linkedMapOf("clip_norm" to verb.clipNorm, "noise_std" to verb.noiseStd)
    is SurveySum -> surveyFields(verb)
    is TellGroup -> surveyFields(verb)
    is Mask -> linkedMapOf("question" to fieldsOf(verb.question))
}

/** Parse a verb of any type. */
internal fun verbOf(f: Fields, path: String): Verb = when (val type = f.string("type")) {
    "train" -> Train(
        batchSize = f.int("batch_size", 2L..4096).toInt(),
        epochs = f.int("epochs", 1L..10_000, 1).toInt(),
        steps = f.intOrNull("steps", Fields.POSITIVE),
        hyper = f.doubles("hyper", emptyMap()),
        graph = f.name("graph", "step"),
        report = f.bool("report", true),
        holdout = f.share("holdout"),
        least = f.count("least", 0),
        mostPasses = f.int("most_passes", 1L..1_000, 1).toInt(),
    )
    "evaluate" -> Evaluate(
        split = f.oneOf("split", listOf("train", "test", "holdout", "windows", "unlabelled", "inputs"), "test"),
        graph = f.name("graph", "evaluate"),
        model = f.oneOf("model", listOf("received", "initial"), "received"),
        holdout = f.share("holdout"),
        report = f.bool("report", true),
        most = f.count("most", 0),
    )
    "choose" -> {
        val models = f.list("models") { it, at ->
            (it as? JsonString)?.value?.takeIf(::isDigest) ?: throw MalformedException("$at: expected a SHA-256")
        }
        if (models.size !in 1..64) throw MalformedException("$path.models: ${models.size} models, expected 1 to 64")
        Choose(models, f.name("graph", "evaluate"))
    }
    "annotate" -> Annotate(f.name("graph"), f.name("column"))
    "apply" -> Apply(f.name("graph"), f.bool("report", true))
    "respond" -> Respond(f.digest("inputs"), f.name("graph", "predict"))
    "protect" -> Protect(
        clipNorm = f.double("clip_norm", expected = "above 0") { it > 0 },
        noiseStd = f.double("noise_std", 0.0, "at least 0") { it >= 0 },
    )
    "survey-sum" -> surveySumOf(f, path)
    "tell-group" -> tellGroupOf(f, path)
    "mask" -> Mask(SumQuestion.of(f.obj("question")))
    else -> throw MalformedException("$path: unknown verb '${type.take(80)}'")
}
