"""The steps of `android_bridge/build`: what Gradle does where its plugins can be had."""
