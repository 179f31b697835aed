package io.shoal.android

import android.content.Context
import android.content.ContextWrapper
import io.shoal.core.ConfigException
import io.shoal.core.Log
import io.shoal.core.ShoalException
import io.shoal.core.Tensor
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.lang.reflect.InvocationTargetException
import java.lang.reflect.Method
import java.lang.reflect.Modifier
import java.lang.reflect.Proxy
import java.time.Duration
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executor
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicInteger
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertIs
import kotlin.test.assertNotNull
import kotlin.test.assertTrue

/** Demands of the library on its callers: their threads, and arguments from Java. */
class CallerTest {
    @TempDir
    lateinit var root: File

    private val platform = FakePlatform(TestKeys(File("unused")))
    private val violations = AtomicInteger()

    /** Thread of the app's, such as its main thread, that must not touch a file of the fleet. */
    private val caller = Thread.currentThread()

    private val threads = List(2) { Executors.newSingleThreadExecutor() }

    @AfterEach
    fun end() = threads.forEach {
        it.shutdown()
        assertTrue(it.awaitTermination(60, TimeUnit.SECONDS))
    }

    /** Return the folder of the fleet as [Shoal] has it: who needs a path there asks for it. */
    private fun folder(): File {
        if (Thread.currentThread() === caller) violations.incrementAndGet()
        return root
    }

    /** Return a fleet, of which nothing is read before [ready] is counted down. */
    private fun fleet(ready: CountDownLatch = CountDownLatch(0)): Fleet {
        platform.reader = Executor { task ->
            threads[0].execute {
                ready.await()
                task.run()
            }
        }
        platform.disk = threads[1]
        return Fleet("f", Home(::folder), platform, Log.SILENT)
    }

    private fun settings(change: FleetBuilder.() -> Unit = {}) =
        FleetBuilder("f").broker("mqtt://b").windows(HomeTest.Source::class.java).allowInsecure().apply(change).build()

    /** Return the names of the functions that an app can call, in Kotlin and Java. */
    private fun publicNames(type: Class<*>): Set<String> = type.declaredMethods
        .filter { Modifier.isPublic(it.modifiers) && !it.isSynthetic && '$' !in it.name }.map { it.name }.toSet()

    /** An app's process, whose folder must not be asked for on the thread of the app's. */
    class AppContext : ContextWrapper(null) {
        override fun getApplicationContext(): Context = this

        override fun getSystemService(name: String): Any? = null

        override fun getNoBackupFilesDir(): File = if (Thread.currentThread() === caller) throw AssertionError("a file on the caller's thread") else root

        companion object {
            lateinit var caller: Thread
            lateinit var root: File
        }
    }

    @Test
    fun `Shoal gives a fleet without a file on the thread that calls it`() {
        AppContext.caller = caller
        AppContext.root = root
        val unsafe = Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe").apply { isAccessible = true }.get(null)
        val context = unsafe.javaClass.getMethod("allocateInstance", Class::class.java).invoke(unsafe, AppContext::class.java) as Context
        val fleet = Shoal.fleet(context, "caller-test") { broker("mqtt://b").windows(HomeTest.Source::class.java).allowInsecure() }
        assertIs<FleetState.Blocked>(fleet.state, "its first reading needs no file of the caller's either")
        assertEquals(fleet, Shoal.fleet(context, "caller-test"))
        assertFailsWith<ConfigException> { Shoal.fleet(context, "a/b") {} }
        CountDownLatch(1).also { fleet.disk.execute(it::countDown) }.await() // its settings are stored
    }

    @Test
    fun `a fleet, its settings, consent and listeners wait for no file`() {
        val ready = CountDownLatch(1)
        val fleet = fleet(ready)
        fleet.configure(settings())
        fleet.consent.grant("terms-1")
        assertTrue(fleet.consent.isGranted, "consent that was granted just now needs no file")
        fleet.requestTraining()
        fleet.labels.add("walking", 0, 1)
        fleet.addModelListener({}, Runnable::run)
        ready.countDown()
        assertEquals(0, violations.get())
    }

    @Test
    fun `no public call touches a file on the caller's thread but those that say so`() {
        val fleet = fleet()
        fleet.configure(settings())
        val states = FleetListener {}
        val models = ModelListener {}
        val rounds = RoundListener {}
        val quick = mapOf<String, Fleet.() -> Unit>(
            "getName" to { name },
            "getState" to { state },
            "getConsent" to { consent.run { listOf(version, isGranted, isWithdrawalConfirmed) } },
            "getLabels" to { labels },
            "getRecordings" to { recordings },
            "addListener" to { addListener(states, Runnable::run) },
            "removeListener" to { removeListener(states) },
            "addModelListener" to { addModelListener(models, Runnable::run) },
            "removeModelListener" to { removeModelListener(models) },
            "addRoundListener" to { addRoundListener(rounds, Runnable::run) },
            "removeRoundListener" to { removeRoundListener(rounds) },
            "requestTraining" to { requestTraining() },
            "recorder" to { assertFailsWith<ConfigException> { recorder() } },
        )
        // Their documentation says that they read files, and that of `leave` that it withdraws.
        val slow = setOf(
            "getModel", "getModelMetrics", "getDeviceId", "getActivityWindows", "predict", "predictNext", "takeQuestion", "certificateRequest", "installCertificate", "leave",
        )
        assertEquals(publicNames(Fleet::class.java), quick.keys + slow)
        val source = File(System.getProperty("shoal.root") ?: "../..", "android_bridge/android/src/main/kotlin/io/shoal/android/Fleet.kt").readText()
        for (name in slow) {
            val declaration = Regex("public (fun|val) ${name.removePrefix("get").replaceFirstChar { it.lowercase() }}\\b").find(source)!!
            val words = source.substring(0, declaration.range.first).substringAfterLast("/**").replace(Regex("\\s+\\*\\s+"), " ")
            assertTrue("main thread" in words, "its documentation says so: $name")
        }
        val consent = mapOf<String, Consent.() -> Unit>(
            "grant" to { grant("terms-1") },
            "getVersion" to { version },
            "isGranted" to { isGranted },
            "isWithdrawalConfirmed" to { isWithdrawalConfirmed },
        )
        assertEquals(publicNames(Consent::class.java), consent.keys + "withdraw")
        assertEquals(setOf("add", "list", "remove"), publicNames(Labels::class.java))
        assertEquals(setOf("delete", "list"), publicNames(StoredRecordings::class.java))
        for (isGranted in listOf(false, true)) {
            if (isGranted) fleet.consent.grant("terms-1")
            for ((name, call) in quick) assertQuiet(name) { fleet.call() }
            for ((name, call) in consent) assertQuiet(name) { fleet.consent.call() }
            assertQuiet("labels") {
                fleet.labels.run {
                    add("walking", 0, 1)
                    list()
                    remove(0, 1)
                }
            }
            assertQuiet("recordings") {
                fleet.recordings.run {
                    list()
                    delete(0, 1)
                }
            }
        }
        fleet.consent.withdraw()
        assertTrue(violations.get() > 0, "the record is gone from disk when it returns")
        fleet.consent.grant("terms-1")
        fleet.leave()
        fleet.configure(settings { interval(Duration.ofHours(3)) })
        fleet.consent.grant("terms-1")
        threads[1].submit {}.get()
        violations.set(0)
        assertQuiet("requestTraining after leaving") { fleet.requestTraining() }
        assertEquals(Duration.ofHours(3), fleet.appSettings.interval)
    }

    private fun assertQuiet(name: String, call: () -> Unit) {
        call()
        assertEquals(0, violations.get(), name)
    }

    @Test
    fun `a listener that throws harms neither the library nor another listener, whatever its executor`() {
        val observers = Observers<Int>()
        val values = ArrayList<Int>()
        observers.add("throws", Runnable::run, 1) { throw IllegalStateException("a mistake") }
        observers.add("listens", Runnable::run, 1) { values += it }
        observers.tell(2)
        observers.tell(3)
        assertEquals(listOf(1, 2, 3), values)
    }

    @Test
    fun `a listener in Java may throw what the library's functions throw`() {
        for (type in listOf(WindowListener::class, FleetListener::class, ModelListener::class, RoundListener::class)) {
            assertEquals(listOf<Class<*>>(ShoalException::class.java), type.java.methods.single().exceptionTypes.toList(), "$type")
        }
    }

    @Test
    fun `null from Java is refused where it means nothing`() {
        val fleet = fleet().also { it.configure(settings()) }
        val builder = FleetBuilder("f")
        val nullable = setOf("broker(1)", "enrol(1)", "login(1)", "model(1)", "recorder(0)")
        val objects = listOf(builder, fleet, fleet.consent, fleet.labels, PolicyBuilder(), Prediction.Classes(listOf("a"), Tensor.scalar(1f)))
        val checked = objects.sumOf { target -> methods(target.javaClass).sumOf { method -> nulls(target, method, nullable) } }
        assertTrue(checked > 20, "$checked parameters")
        val error = assertFailsWith<NullPointerException> { unwrapped { FleetBuilder::class.java.getMethod("trust", String::class.java).invoke(builder, null) } }
        assertTrue("pem" in error.message!!, error.message)
    }

    private fun methods(type: Class<*>) = type.declaredMethods.filter { Modifier.isPublic(it.modifiers) && !it.isSynthetic && '$' !in it.name }

    /** Call [method] with null for each of its objects; return their number. */
    private fun nulls(target: Any, method: Method, nullable: Set<String>): Int {
        val objects = method.parameterTypes.indices.filter { !method.parameterTypes[it].isPrimitive && "${method.name}($it)" !in nullable }
        for (index in objects) {
            val values = method.parameterTypes.mapIndexed { at, type -> if (at == index) null else valueOf(type) }
            assertNotNull(
                assertFailsWith<NullPointerException>("$method, parameter $index") { unwrapped { method.invoke(target, *values.toTypedArray()) } }.message,
            )
        }
        return objects.size
    }

    /** Return any value of a type that a parameter may have. */
    private fun valueOf(type: Class<*>): Any? = when (type) {
        String::class.java -> "a"
        Int::class.java -> 1
        Long::class.java -> 1L
        Double::class.java -> 1.0
        Boolean::class.java -> true
        LabelSource::class.java -> LabelSource.APP
        Tensor::class.java -> Tensor.scalar(1f)
        Class::class.java -> HomeTest.Source::class.java
        else -> if (type.isInterface) Proxy.newProxyInstance(type.classLoader ?: javaClass.classLoader, arrayOf(type)) { _, _, _ -> null } else null
    }

    private fun unwrapped(call: () -> Unit) = try {
        call()
    } catch (error: InvocationTargetException) {
        throw error.targetException
    }
}
