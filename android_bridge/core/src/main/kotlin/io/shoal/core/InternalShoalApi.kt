package io.shoal.core

/**
 * What Shoal's own modules say to each other. An app has no use for it, and it may change in any version: what an app uses is in
 * `io.shoal.android`, and of `io.shoal.core` what does not bear this mark.
 */
@RequiresOptIn("this is between Shoal's own modules, and may change in any version", RequiresOptIn.Level.ERROR)
@Retention(AnnotationRetention.BINARY)
@Target(AnnotationTarget.CLASS, AnnotationTarget.FUNCTION, AnnotationTarget.PROPERTY, AnnotationTarget.TYPEALIAS)
public annotation class InternalShoalApi
