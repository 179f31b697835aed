package io.shoal.android

import io.shoal.core.Current
import io.shoal.core.FolderStorage
import io.shoal.core.GraphLoader
import io.shoal.core.OwnerThread
import io.shoal.core.Predictor
import io.shoal.core.Tensor
import io.shoal.executorch.ExecutorchLoader
import java.io.File

/** ExecuTorch in this process: one thread owns it, for jobs and predictions alike. */
internal object Runtime {
    private val owner = OwnerThread("shoal-executorch")

    fun loader(home: Home): GraphLoader = owner.owned(ExecutorchLoader(home.programs))
}

/** Predictions; the model stays loaded from one to the next. */
internal object Answers {
    private class Opened(val state: File, val keys: String?, val predictor: Predictor)

    private var opened: Opened? = null

    /** Told when another model answers from then on. */
    @Volatile
    var onReplaced: (Current) -> Unit = {}

    @Synchronized
    fun predict(home: Home, settings: ShoalSettings, x: Tensor): Tensor {
        val state = home.state(settings)
        val held = opened?.takeIf { it.state == state && it.keys == settings.trustedKeyPem } ?: open(home, settings, state)
        return held.predictor.predict(x)
    }

    @Synchronized
    fun close() {
        opened?.predictor?.close()
        opened = null
    }

    private fun open(home: Home, settings: ShoalSettings, state: File): Opened {
        close()
        val predictor = Predictor(FolderStorage(state, LogcatLog), Runtime.loader(home), settings.trusted) { onReplaced(it) }
        return Opened(state, settings.trustedKeyPem, predictor).also { opened = it }
    }
}
