package io.shoal.core

import io.shoal.core.wire.Annotate
import io.shoal.core.wire.Apply
import io.shoal.core.wire.CheckIn
import io.shoal.core.wire.Choose
import io.shoal.core.wire.Evaluate
import io.shoal.core.wire.Mask
import io.shoal.core.wire.Plan
import io.shoal.core.wire.Policy
import io.shoal.core.wire.Protect
import io.shoal.core.wire.Respond
import io.shoal.core.wire.SurveySum
import io.shoal.core.wire.SurveyVerb
import io.shoal.core.wire.TellGroup
import io.shoal.core.wire.Train
import io.shoal.core.wire.Verb

/** Number of training windows that a device reports if it does not report how many it has. */
private const val ENOUGH_WINDOWS = 32L

/**
 * Return the number of windows of each class for a check-in, from the classes [y] of the training
 * windows. Null if the policy does not permit it, if labels are not classes, or if a class number
 * is not below [CheckIn.MOST_CLASSES].
 */
internal fun reportedClasses(policy: Policy, y: Tensor): List<Long>? =
    if (policy.tellClasses && y.shape.size == 1) countsOf(y.toLongArray()) else null

private fun countsOf(y: LongArray): List<Long>? {
    if (y.any { it !in 0 until CheckIn.MOST_CLASSES }) return null
    val counts = LongArray(y.maxOrNull()?.plus(1)?.toInt() ?: 0)
    for (number in y) counts[number.toInt()]++
    return counts.toList()
}

/**
 * Return the rule that the plan breaks, a colon and what the plan demands, or null (`wire/SPEC.md`,
 * 'Policy'). Pure. The rules on seconds and bytes are enforced while the plan is carried out.
 *
 * @param bundle name of the plan's bundle
 * @param measuring graphs of the bundle that have responses
 * @param y labels of the training windows
 * @param numTest number of test windows
 */
internal fun brokenRule(policy: Policy, plan: Plan, bundle: String, measuring: Set<String>, y: Tensor, numTest: Int): String? {
    for (verb in plan.verbs) {
        val graph = graphOf(verb)
        if (policy.verbs != null && verb.type !in policy.verbs) return "verbs: ${verb.type} is not permitted"
        if (policy.graphs != null && graph != null && graph !in policy.graphs) return "graphs: $graph is not permitted"
        if (policy.unreported?.contains(graph) == true && reports(verb)) return "unreported: ${verb.type} reports what graph $graph gives"
    }
    if (policy.bundles != null && bundle !in policy.bundles) return "bundles: $bundle is not permitted"
    val isMasked = maskOf(plan) != null
    val surveys = surveying(plan) != null
    if (policy.minSum != null && !isMasked && !surveys) return "min_sum: the plan does not end with mask"
    if (surveys) noSurvey(plan.verbs)?.let { return it }
    if (isMasked && !surveys) unmaskable(plan.verbs.dropLast(1))?.let { return it }
    val epochs = plan.verbs.sumOf { if (it is Train) epochsOf(it, y.rows) else 0.0 }
    if (epochs > policy.maxEpochs) return "max_epochs: $epochs are asked for, ${policy.maxEpochs} are permitted"
    // of all that such a plan reports, only this is sent
    val verbs = if (isMasked || surveys) plan.verbs.filter { it is Train || it is Protect || it is SurveyVerb } else plan.verbs
    return unprotected(policy, verbs, measuring) ?: tooFewWindows(policy, verbs, measuring, y, numTest) ?: telling(policy, verbs, measuring)
}

/** Return the verb that masks the plan's result, or null if it is reported as it is. */
internal fun maskOf(plan: Plan): Mask? = plan.verbs.lastOrNull() as? Mask

/** Return the verb by which a plan finds groups from sums, or null. */
internal fun surveying(plan: Plan): SurveyVerb? = plan.verbs.firstNotNullOfOrNull { it as? SurveyVerb }

/**
 * Return the rule that a plan with a verb of a survey breaks, or null. Such a plan surveys all training
 * windows with the bundle's initial model, and does nothing else. So all that devices tell of their
 * groups is about the same measurements.
 */
private fun noSurvey(verbs: List<Verb>): String? {
    val survey = verbs.first { it is SurveyVerb }
    val follows = if (survey is SurveySum) listOf(verbs.lastOrNull() as? Mask) else emptyList()
    if (verbs == listOf(Evaluate("train", "survey", "initial", report = false), survey) + follows) return null
    return "${survey.type}: the plan must be a survey by the initial model, ${survey.type} and nothing else"
}

/** Return a check-in without the facts of the data that the policy does not permit. */
internal fun permittedFacts(policy: Policy, message: CheckIn): CheckIn {
    if (policy.minSum == null) return message
    val enough = if (message.numTrain >= ENOUGH_WINDOWS) ENOUGH_WINDOWS else 0
    return message.copy(numTrain = enough, numTest = 0, numUnlabelled = 0, classes = null, moved = false)
}

/**
 * Return the rule `mask` with the first of these verbs that may not come before it, or null. A device
 * must contribute whatever its data are, by the same rule as all others. Else the sums of two plans
 * over the same devices differ by what one of them has.
 */
private fun unmaskable(verbs: List<Verb>): String? = verbs.firstOrNull { verb ->
    when (verb) {
        is Train -> verb.steps != null || verb.holdout != 0.0 || verb.least != 0L || !verb.report
        is Evaluate -> verb.holdout != 0.0 || verb.most != 0L
        is Protect -> false
        else -> true
    }
}?.let { "mask: this form of ${it.type} is not permitted before it" }

/**
 * Return the rule `tell_classes` with the graph whose measurements would tell classes, or null. A
 * measurement of windows with their labels may be a gradient, which tells the classes.
 */
private fun telling(policy: Policy, verbs: List<Verb>, measuring: Set<String>): String? {
    if (policy.tellClasses) return null
    val verb = verbs.firstOrNull { it is Evaluate && it.report && it.graph in measuring && it.split !in listOf("inputs", "unlabelled") }
    return verb?.let { "tell_classes: evaluate reports what graph ${graphOf(it)} measures with labels" }
}

/** Return the graph that a verb runs, or null if it runs none. */
internal fun graphOf(verb: Verb): String? = when (verb) {
    is Train -> verb.graph
    is Evaluate -> verb.graph
    is Choose -> verb.graph
    is Annotate -> verb.graph
    is Apply -> verb.graph
    is Respond -> verb.graph
    is Protect, is SurveySum, is TellGroup, is Mask -> null
}

private fun epochsOf(train: Train, numTrain: Int): Double =
    if (numTrain - numHeldOut(numTrain, train.holdout) < train.least) 0.0 else train.steps?.let { it.toDouble() * train.batchSize / maxOf(1, numTrain) } ?: train.epochs.toDouble()

/**
 * Return the rule on clipping and noise that the plan breaks, or null. Neither clipping nor noise
 * covers what a graph measures, and a graph may measure a gradient. So no such measurement may
 * leave the device, before training or after it.
 */
private fun unprotected(policy: Policy, verbs: List<Verb>, measuring: Set<String>): String? {
    val leastNoise = policy.minNoiseMultiplier ?: 0.0
    if (policy.maxClipNorm == null && leastNoise == 0.0) return null
    val rule = if (policy.maxClipNorm != null) "max_clip_norm" else "min_noise_multiplier"
    for (verb in verbs) {
        val measures = (verb is Apply && verb.report) || verb is Respond || verb is SurveyVerb || (verb is Evaluate && verb.report && verb.graph in measuring)
        if (measures) return "$rule: ${verb.type} reports what neither clipping nor noise covers"
    }
    if (verbs.none { it is Train && it.report }) return null
    val last = verbs.last() as? Protect ?: return "$rule: the plan does not end with protect"
    if (policy.maxClipNorm != null && last.clipNorm > policy.maxClipNorm) {
        return "max_clip_norm: ${last.clipNorm} is asked for, ${policy.maxClipNorm} is permitted"
    }
    val least = leastNoise * last.clipNorm
    return if (last.noiseStd < least) "min_noise_multiplier: noise of ${last.noiseStd} is asked for, $least is the least" else null
}

/**
 * Return the rule `min_windows` with the verb whose report is over too few windows, or null. An
 * unreported verb changes what later reports are made of, so its windows count for them too. Only
 * the accuracy of a model's answers is exempt.
 */
private fun tooFewWindows(policy: Policy, verbs: List<Verb>, measuring: Set<String>, y: Tensor, numTest: Int): String? {
    var behind = y.rows
    for (verb in verbs) {
        val over = windowsOf(verb, y, numTest) ?: continue
        if (over == 0 && policy.minWindows <= 1 && verb !is Train) continue
        if ((verb is Train && !verb.report) || (verb is Evaluate && !verb.report)) {
            behind = minOf(behind, over)
            continue
        }
        val measures = verb is Apply || verb is Train || verb is Respond || verb is SurveyVerb || (verb is Evaluate && verb.graph in measuring)
        val count = if (measures) minOf(over, behind) else over
        if (count < policy.minWindows) {
            val few = if (policy.minSum == null) "$count" else "too few windows"
            return "min_windows: ${verb.type} is over $few, ${policy.minWindows} are the least"
        }
    }
    return null
}

/**
 * Return the number of windows with labels that a verb is over. A verb that reports something of
 * tensors alone counts as over all windows. Null if the verb is over no window and measures
 * nothing: a training that is skipped, or an empty split.
 */
private fun windowsOf(verb: Verb, y: Tensor, numTest: Int): Int? = when (verb) {
    is Train -> (y.rows - numHeldOut(y.rows, verb.holdout)).takeIf { it >= verb.least }
    is Evaluate -> when (verb.split) {
        "test" -> numTest.takeIf { it > 0 }
        "holdout" -> numHeldOut(y.rows, verb.holdout).takeIf { it > 0 }
        "windows" -> firstWindows(verb, y)
        "inputs" -> if (verb.most == 0L) y.rows else if (verb.report) 0 else minOf(verb.most, y.rows.toLong()).toInt()
        "unlabelled" -> if (verb.report) 0 else minOf(verb.most, Int.MAX_VALUE.toLong()).toInt().takeIf { it > 0 }
        else -> y.rows.takeIf { it > 0 }
    }
    is Apply -> y.rows.takeIf { verb.report }
    is Choose, is Respond, is SurveySum, is TellGroup -> y.rows
    is Annotate, is Protect, is Mask -> null
}

/**
 * Return the number of windows with labels that an evaluation of the split `windows` is over at
 * least. It is 0 if it reports the first ones: two reports that differ by one window would reveal
 * that window.
 */
private fun firstWindows(verb: Evaluate, y: Tensor): Int {
    if (verb.most > 0 && verb.report) return 0
    val isHeldOut = heldOut(y, verb.holdout)
    val ranks = Split.ranks(y.rows, if (verb.most > 0) y.rows else 0)
    return (0 until y.rows).count { (verb.holdout == 0.0 || isHeldOut[it]) && (verb.most == 0L || ranks[it] < verb.most) }
}

/** Return true if the verb sends an output of its graph. */
private fun reports(verb: Verb): Boolean = when (verb) {
    is Train -> verb.report
    is Evaluate -> verb.report
    is Apply -> verb.report
    is Choose, is Respond -> true
    is Annotate, is Protect, is SurveySum, is TellGroup, is Mask -> false
}
