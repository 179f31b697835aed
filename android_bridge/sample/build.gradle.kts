plugins { alias(libs.plugins.android.application) }

android {
    namespace = "io.shoal.sample"
    compileSdk = 36
    defaultConfig {
        applicationId = "io.shoal.sample"
        minSdk = 26
        targetSdk = 36
        versionCode = 1
        versionName = "1.0"
    }
    buildTypes {
        release {
            isMinifyEnabled = true
            proguardFiles(getDefaultProguardFile("proguard-android-optimize.txt"))
        }
    }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }
}

dependencies {
    implementation(project(":android"))
    implementation(project(":foreground"))
    implementation(project(":recording"))
}
