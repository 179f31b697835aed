package io.shoal.core

/**
 * What a device knows of the aggregator's clock (`wire/SPEC.md`, 'Time'): the latest time that an aggregator said, and what has passed since
 * it came, by a clock that cannot be set. It is never later than the aggregator's own clock.
 */
internal class AggregatorTime(private val clock: Clock) {
    private var epoch = -1L
    private var saidS = Double.NEGATIVE_INFINITY
    private var cameS = 0.0

    /**
     * An aggregator said that its clock shows [atS]. One of a later [epoch] is believed also if its clock was set back. False if the epoch
     * is over: what the aggregator said is to be ignored.
     */
    fun heard(epoch: Long, atS: Double): Boolean {
        if (epoch < this.epoch) return false
        if (epoch > this.epoch || atS > nowS()) {
            this.epoch = epoch
            saidS = atS
            cameS = clock.steadySeconds()
        }
        return true
    }

    /** Unix time in seconds; minus infinity before anything was said. */
    fun nowS(): Double = saidS + (clock.steadySeconds() - cameS)

    /** The later of the aggregator's clock and the device's own. */
    fun latestS(): Double = maxOf(clock.nowSeconds(), nowS())
}
