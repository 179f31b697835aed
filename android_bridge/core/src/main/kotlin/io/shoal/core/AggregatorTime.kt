package io.shoal.core

/**
 * Aggregator's time, estimated from its statuses; never later than its own clock (`wire/SPEC.md`,
 * 'Time'). The estimate is the latest time of the latest epoch, plus the time since that status
 * came, by a clock that cannot be set.
 */
internal class AggregatorTime(private val clock: Clock) {
    private var epoch = -1L
    private var atStatusS = Double.NEGATIVE_INFINITY
    private var cameS = 0.0

    /**
     * Set the clock by a status, and return false if its [epoch] is over. [atS] is the aggregator's
     * time. A status of an epoch that is over is to be ignored; a later epoch may set the clock
     * back.
     */
    fun hear(epoch: Long, atS: Double): Boolean {
        if (epoch < this.epoch) return false
        if (epoch > this.epoch || atS > nowS()) {
            this.epoch = epoch
            atStatusS = atS
            cameS = clock.steadySeconds()
        }
        return true
    }

    /** Return the Unix time in seconds, or minus infinity before the first status. */
    fun nowS(): Double = atStatusS + (clock.steadySeconds() - cameS)

    /**
     * Return the time by which a plan of this [epoch] is judged. It is minus infinity before a
     * status of this epoch or a later one: the aggregator's clock may have been set since the last
     * status.
     */
    fun forEpoch(epoch: Long): Double = if (epoch <= this.epoch) nowS() else Double.NEGATIVE_INFINITY

    /** Return the later of the aggregator's time and the device's own. */
    fun latestS(): Double = maxOf(clock.nowSeconds(), nowS())
}
