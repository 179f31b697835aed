package io.shoal.core

import io.shoal.core.random.Noise
import io.shoal.core.wire.PublicKey
import io.shoal.core.wire.Tasks
import java.io.Closeable
import java.io.IOException
import kotlin.math.abs

/**
 * Predictions by the model in use on this device, with its personal model. They need no connection,
 * and training does not affect them. A newer model in use is loaded at the next prediction. If the
 * model in use is damaged, the model before it answers. Used by one thread at a time.
 *
 * @param trusted root keys, one of which must have signed the model's bundle; without any, it is
 *   tested for damage alone
 * @param onReplaced called before another model answers for the first time, on the thread that
 *   predicts
 * @param remembers function that returns true if long stretches may be stored, for questions
 */
@InternalShoalApi
public class Predictor @JvmOverloads constructor(
    private val storage: Storage,
    loader: GraphLoader,
    trusted: List<PublicKey>,
    private val remembers: () -> Boolean = { true },
    private val onReplaced: (Current) -> Unit = {},
) : Closeable {
    private val loaded = LoadedBundle(storage, loader, windows = null, trusted, Noise.fromEntropy())
    private var model: Pair<String, Tensors>? = null
    private var answering: Current? = null
    private var filter: StreamFilter? = null
    private var savedS = Double.NEGATIVE_INFINITY
    private var questions: Questions? = null

    /** Model that answers now, or null before there is one. */
    public val current: Current? get() = storage.current()

    /**
     * Classes of the model that answered last, in the order of its probabilities; empty before the
     * first answer.
     */
    public val classes: List<String> get() = answering?.let { loaded.verified(it.bundle).manifest.classes }.orEmpty()

    /** Task of the model that answered last; empty before the first answer. */
    public val task: String get() = answering?.let { loaded.verified(it.bundle).manifest.task }.orEmpty()

    /**
     * Return class probabilities (n, classes) float32 of examples [x] (n, window), or the numbers
     * of another task. Every failure but that of a wrong [x] is counted and reported.
     *
     * @throws ModelUnavailableException there is no model yet
     * @throws ConfigException the model is damaged and not fetched again yet
     * @throws ShoalException the model cannot answer for these examples
     */
    public fun predict(x: Tensor): Tensor = try {
        attempt(x)
    } catch (error: DataException) {
        throw error
    } catch (error: Throwable) {
        count { storage.current() != null }
        throw error
    }

    /**
     * Return the answer to the next window [x] (1, window) of a stream, which begins at [beginS]
     * (Unix time). Classes are filtered by the windows before; other tasks, and a bundle without a rate, are
     * answered as by [predict].
     *
     * @throws ModelUnavailableException there is no model yet
     * @throws ConfigException the model is damaged and not fetched again yet
     * @throws ShoalException the model cannot answer for this window
     */
    public fun predictNext(x: Tensor, beginS: Double): Tensor {
        val answer = predict(x)
        val bundle = answering?.bundle ?: return answer
        val window = loaded.verified(bundle).manifest.window
        if (task != Tasks.CLASSIFICATION || window.rateHz <= 0 || answer.rows != 1) return answer
        val open = filter?.takeIf { it.sums.bundle == bundle } ?: StreamFilter(storage.stream(bundle), window.stride / window.rateHz, ::remember)
        filter = open
        val filtered = open.answer(beginS, answer.toFloatArray())
        if (abs(beginS - savedS) >= SAVE_S) {
            savedS = beginS
            save()
        }
        return Tensor.of(filtered, answer.shape)
    }

    /** Mean number of windows of an activity of the model's stream, or null before it is known. */
    public val activity: Double? get() = storage.current()?.let { storage.stream(it.bundle).activity(loaded.verified(it.bundle).manifest.classes.size) }

    /**
     * Return the question to ask at [nowS] (Unix time), which counts as asked from then on; null if
     * none is due. Of the same day, [mostADay] may be asked, and none about a stretch that
     * [hasLabel].
     */
    public fun takeQuestion(mostADay: Int, nowS: Double, hasLabel: (Question) -> Boolean = { false }): Question? {
        if (storage.current() == null) return null
        val stored = questions ?: storage.questions()
        val due = dueQuestion(stored.stretches.asSequence().filterNot(hasLabel), stored.lastS, mostADay, nowS)
        return due?.takeIf { save(Questions(stored.stretches, nowS)) }
    }

    /** Store a long stretch, about which the owner may be asked. */
    private fun remember(activity: Activity) {
        val open = filter ?: return
        val manifest = loaded.verified(open.sums.bundle).manifest
        val question = questionOf(activity, open.sums, manifest.classes, manifest.window.length / manifest.window.rateHz)
        if (question != null && remembers()) save((questions ?: storage.questions()).add(question))
    }

    private fun save(changed: Questions): Boolean = try {
        storage.saveQuestions(changed)
        questions = changed
        true
    } catch (_: IOException) {
        false
    }

    /** Store what the filter has learnt. If that fails, it lasts as long as this object. */
    private fun save() {
        try {
            filter?.let { storage.saveStream(it.sums) }
        } catch (_: IOException) {
        }
    }

    /**
     * Count one more failure, if [where] returns true. A full disk, or a phone that leaves its
     * fleet meanwhile, must not prevent the error's report, so the failure is not counted then.
     */
    private fun count(where: () -> Boolean = { true }) {
        try {
            if (where()) storage.saveFailures(storage.failures() + 1)
        } catch (_: IOException) {
        }
    }

    private fun attempt(x: Tensor): Tensor = try {
        answer(storage.current(), x)
    } catch (_: MissingBlobException) { // another model came into use and the old one was deleted, or it is damaged
        try {
            answer(storage.current(), x)
        } catch (missing: MissingBlobException) {
            stand(x, missing)
        }
    }

    /** Return the answer of the model before the one in use. */
    private fun stand(x: Tensor, missing: MissingBlobException): Tensor = try {
        answer(storage.before() ?: throw missing, x).also { count() }
    } catch (_: MissingBlobException) {
        throw ConfigException("the model of this device is damaged; the next job fetches it again", missing)
    }

    private fun answer(current: Current?, x: Tensor): Tensor {
        if (current == null) throw ModelUnavailableException("This device has no model yet; it gets one by a release or at the end of a campaign")
        val executor = loaded.executor(current.bundle)
        val tensors = model?.takeIf { it.first == current.model }?.second ?: loaded.tensors(current.model)
        model = current.model to tensors
        val before = answering
        answering = current
        if (before != null && keyOf(before) != keyOf(current)) onReplaced(current)
        return executor.predict(tensors, current.private, x)
    }

    private fun keyOf(current: Current) = listOf(current.release, current.bundle, current.model, current.run, current.personalModel)

    /** Release the graphs. */
    override fun close(): Unit = loaded.close()

    private companion object {
        /** Seconds of a stream between two writes of what the filter has learnt. */
        private const val SAVE_S = 10.0
    }
}
