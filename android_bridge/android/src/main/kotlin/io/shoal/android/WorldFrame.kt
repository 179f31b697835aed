package io.shoal.android

/**
 * Rotation of measurements along the phone's axes into the world's (x to the east or any fixed
 * direction, y to its left, z up), by the phone's last attitude from Android's game rotation
 * vector. Then it does not matter how somebody carries the phone.
 */
internal class WorldFrame {
    private var x = 0.0
    private var y = 0.0
    private var z = 0.0
    private var w = 1.0

    /** True if the attitude is known. */
    var isKnown = false
        private set

    /**
     * Set the attitude: a unit quaternion's vector part, with its real part if Android gives it.
     */
    fun turn(vector: FloatArray) {
        x = vector[0].toDouble()
        y = vector[1].toDouble()
        z = vector[2].toDouble()
        w = if (vector.size > 3) vector[3].toDouble() else Math.sqrt(maxOf(0.0, 1 - x * x - y * y - z * z))
        isKnown = true
    }

    /**
     * Write [phone], three numbers along the phone's axes, as numbers along the world's axes into
     * [world].
     */
    fun apply(phone: FloatArray, world: FloatArray) {
        val (a, b, c) = Triple(phone[0].toDouble(), phone[1].toDouble(), phone[2].toDouble())
        val (tx, ty, tz) = Triple(2 * (y * c - z * b), 2 * (z * a - x * c), 2 * (x * b - y * a))
        world[0] = (a + w * tx + y * tz - z * ty).toFloat()
        world[1] = (b + w * ty + z * tx - x * tz).toFloat()
        world[2] = (c + w * tz + x * ty - y * tx).toFloat()
    }
}
