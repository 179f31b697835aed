package io.shoal.core

/**
 * Personal model of a model of a bundle, in a run. [tensors] is the digest of the blob with its
 * tensors.
 */
@InternalShoalApi
public data class PersonalModel(val run: String, val bundle: String, val model: String, val tensors: String)

/**
 * Personal models that a device keeps (`wire/SPEC.md`, 'What a device keeps'); pure, with the rules
 * of `edge_client/core/kept.py`. A personal model is used with its model of its bundle alone. The
 * device keeps the latest personal model of each model, and those of the last few models.
 */
internal object PersonalModelRules {
    /** Return the personal models after [latest] was added, the newest at the end. */
    fun with(models: List<PersonalModel>, latest: PersonalModel): List<PersonalModel> =
        (models.filterNot { isOf(it, latest.bundle, latest.model) } + latest).takeLast(MAX_MODELS)

    /** Return the personal model of this model of this bundle, or null. */
    fun of(models: List<PersonalModel>, bundle: String, model: String): PersonalModel? = models.firstOrNull { isOf(it, bundle, model) }

    /**
     * Return why a model answers without a personal model although the device has one, or "". It is
     * empty if the device has no personal model at all, or has one of this model.
     */
    fun whyAlone(models: List<PersonalModel>, bundle: String, model: String): String {
        val last = models.lastOrNull()
        if (last == null || of(models, bundle, model) != null) return ""
        return "the personal model of campaign ${last.run} was made from model ${last.model.take(12)}, not from this one"
    }

    private fun isOf(personalModel: PersonalModel, bundle: String, model: String) =
        personalModel.bundle == bundle && personalModel.model == model

    /** Maximum number of personal models on a device; the oldest are dropped. */
    private const val MAX_MODELS = 3
}
