package io.shoal.core

/**
 * Mark of declarations that Shoal's own modules use among each other. They may change in any
 * version. An app uses `io.shoal.android`, and the declarations of `io.shoal.core` without this
 * mark.
 */
@RequiresOptIn("for Shoal's own modules; it may change in any version", RequiresOptIn.Level.ERROR)
@Retention(AnnotationRetention.BINARY)
@Target(AnnotationTarget.CLASS, AnnotationTarget.FUNCTION, AnnotationTarget.PROPERTY, AnnotationTarget.TYPEALIAS)
public annotation class InternalShoalApi
