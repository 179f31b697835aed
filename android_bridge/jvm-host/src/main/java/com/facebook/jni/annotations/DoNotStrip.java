package com.facebook.jni.annotations;

import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;

/** Marks what native code calls; as in fbjni. */
@Retention(RetentionPolicy.CLASS)
public @interface DoNotStrip {}
