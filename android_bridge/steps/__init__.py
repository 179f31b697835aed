"""Steps of `android_bridge/build`. They replace Gradle, whose plugins are not available here."""
