// Tests and demonstrations only: the ExecuTorch adapter on a desktop JVM. The adapter is compiled here from its own sources, because a
// plain JVM module cannot consume an AAR, against ExecuTorch's public classes, which `../build fetch` downloads.
plugins { alias(libs.plugins.kotlin.jvm) }

kotlin {
    compilerOptions { optIn.add("io.shoal.core.InternalShoalApi") }
    sourceSets.main { kotlin.srcDir("../executorch/src/main/kotlin") }
}

dependencies {
    implementation(project(":core"))
    implementation(files("../.tools/executorch-api-0.9.3/classes.jar"))
}
