// Native methods of the Java classes of org.pytorch.executorch, on Linux: the same Module and EValue as in the Android library, over the
// runtime in ExecuTorch's Python wheel. For tests and demonstrations; a phone has ExecuTorch's own library.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/platform/runtime.h>
#include <jni.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

using executorch::aten::ScalarType;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;

namespace executorch::extension::threadpool {
// In the wheel's library, but not among its headers.
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t new_thread_count);
  size_t get_thread_count() const;
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

namespace {

constexpr jint kTensor = 1, kDouble = 3, kLong = 4;  // EValue's type codes

void raise(JNIEnv* env, Error code, const std::string& text) {
  jclass type = env->FindClass("org/pytorch/executorch/ExecutorchRuntimeException");
  jmethodID make = type ? env->GetMethodID(type, "<init>", "(ILjava/lang/String;)V") : nullptr;
  if (make == nullptr) {
    env->ExceptionClear();
    env->ThrowNew(env->FindClass("java/lang/RuntimeException"), text.c_str());
    return;
  }
  env->Throw(static_cast<jthrowable>(env->NewObject(type, make, static_cast<jint>(code), env->NewStringUTF(text.c_str()))));
}

std::string text_of(JNIEnv* env, jstring text) {
  const char* chars = env->GetStringUTFChars(text, nullptr);
  std::string copy(chars);
  env->ReleaseStringUTFChars(text, chars);
  return copy;
}

jobjectArray strings(JNIEnv* env, const std::vector<std::string>& values) {
  jobjectArray array = env->NewObjectArray(static_cast<jsize>(values.size()), env->FindClass("java/lang/String"), nullptr);
  for (size_t i = 0; i < values.size(); ++i) {
    env->SetObjectArrayElement(array, static_cast<jsize>(i), env->NewStringUTF(values[i].c_str()));
  }
  return array;
}

Module* module_of(JNIEnv* env, jobject self) {
  jfieldID data = env->GetFieldID(env->GetObjectClass(self), "mHybridData", "Lcom/facebook/jni/HybridData;");
  jobject hybrid = env->GetObjectField(self, data);
  jfieldID handle = env->GetFieldID(env->GetObjectClass(hybrid), "handle", "J");
  return reinterpret_cast<Module*>(env->GetLongField(hybrid, handle));
}

jobject hybrid(JNIEnv* env, jlong handle) {
  jclass type = env->FindClass("com/facebook/jni/HybridData");
  return env->NewObject(type, env->GetMethodID(type, "<init>", "(J)V"), handle);
}

// Returns the Java tensor's memory, not copied, or null with an exception if it cannot be read.
TensorPtr tensor_of(JNIEnv* env, jobject tensor, jclass type) {
  auto shape = static_cast<jlongArray>(env->GetObjectField(tensor, env->GetFieldID(type, "shape", "[J")));
  std::vector<jlong> dims(env->GetArrayLength(shape));
  env->GetLongArrayRegion(shape, 0, static_cast<jsize>(dims.size()), dims.data());
  jobject buffer = env->CallObjectMethod(tensor, env->GetMethodID(type, "getRawDataBuffer", "()Ljava/nio/Buffer;"));
  void* data = env->GetDirectBufferAddress(buffer);
  if (data == nullptr) {
    raise(env, Error::InvalidArgument, "an input tensor's buffer is not direct");
    return nullptr;
  }
  jint dtype = env->CallIntMethod(tensor, env->GetMethodID(type, "dtypeJniCode", "()I"));
  std::vector<executorch::aten::SizesType> sizes(dims.begin(), dims.end());
  return executorch::extension::from_blob(data, sizes, static_cast<ScalarType>(dtype));
}

}  // namespace

extern "C" {

JNIEXPORT void JNICALL Java_com_facebook_jni_HybridData_free(JNIEnv*, jclass, jlong handle) { delete reinterpret_cast<Module*>(handle); }

JNIEXPORT jobject JNICALL Java_org_pytorch_executorch_Module_initHybrid(JNIEnv* env, jclass, jstring path, jint mode, jint threads) {
  executorch::runtime::runtime_init();
  const int pool_size = threads != 0 ? threads : static_cast<int>(std::thread::hardware_concurrency()) / 2;  // as the library for Android does
  if (pool_size > 0) {
    executorch::extension::threadpool::get_threadpool()->_unsafe_reset_threadpool(static_cast<uint32_t>(pool_size));
  }
  const std::string file = text_of(env, path);
  auto module = std::make_unique<Module>(file, mode == 0 ? Module::LoadMode::File : Module::LoadMode::Mmap);
  if (const auto error = module->load(); error != Error::Ok) {
    raise(env, error, "cannot load " + file);
    return nullptr;
  }
  return hybrid(env, reinterpret_cast<jlong>(module.release()));
}

JNIEXPORT jint JNICALL Java_io_shoal_host_ThreadsKt_threadsOfTheProcess(JNIEnv*, jclass) {
  return static_cast<jint>(executorch::extension::threadpool::get_threadpool()->get_thread_count());
}

JNIEXPORT jobjectArray JNICALL Java_org_pytorch_executorch_Module_getMethodsNative(JNIEnv* env, jobject self) {
  auto names = module_of(env, self)->method_names();
  return strings(env, names.ok() ? std::vector<std::string>(names->begin(), names->end()) : std::vector<std::string>());
}

JNIEXPORT jobjectArray JNICALL Java_org_pytorch_executorch_Module_getMethods(JNIEnv* env, jobject self) {
  return Java_org_pytorch_executorch_Module_getMethodsNative(env, self);
}

JNIEXPORT jobjectArray JNICALL Java_org_pytorch_executorch_Module_getUsedBackends(JNIEnv* env, jobject, jstring) { return strings(env, {}); }

JNIEXPORT jint JNICALL Java_org_pytorch_executorch_Module_loadMethodNative(JNIEnv* env, jobject self, jstring name) {
  return static_cast<jint>(module_of(env, self)->load_method(text_of(env, name)));
}

JNIEXPORT jobjectArray JNICALL Java_org_pytorch_executorch_Module_readLogBufferStaticNative(JNIEnv* env, jclass) { return strings(env, {}); }

JNIEXPORT jobjectArray JNICALL Java_org_pytorch_executorch_Module_executeNative(JNIEnv* env, jobject self, jstring name, jobjectArray arguments) {
  jclass value_type = env->FindClass("org/pytorch/executorch/EValue"), tensor_type = env->FindClass("org/pytorch/executorch/Tensor");
  jfieldID code = env->GetFieldID(value_type, "mTypeCode", "I");
  jmethodID to_tensor = env->GetMethodID(value_type, "toTensor", "()Lorg/pytorch/executorch/Tensor;");
  std::vector<TensorPtr> tensors;
  std::vector<EValue> inputs;
  for (jsize i = 0, n = env->GetArrayLength(arguments); i < n; ++i) {
    jobject value = env->GetObjectArrayElement(arguments, i);
    switch (env->GetIntField(value, code)) {
      case kTensor: {
        TensorPtr tensor = tensor_of(env, env->CallObjectMethod(value, to_tensor), tensor_type);
        if (tensor == nullptr) return nullptr;
        tensors.push_back(tensor);
        inputs.emplace_back(*tensor);
        break;
      }
      case kLong:
        inputs.emplace_back(static_cast<int64_t>(env->CallLongMethod(value, env->GetMethodID(value_type, "toInt", "()J"))));
        break;
      case kDouble:
        inputs.emplace_back(static_cast<double>(env->CallDoubleMethod(value, env->GetMethodID(value_type, "toDouble", "()D"))));
        break;
      default:
        raise(env, Error::InvalidArgument, "an input must be a tensor or a number");
        return nullptr;
    }
  }
  const auto outputs = module_of(env, self)->execute(text_of(env, name), inputs);
  if (!outputs.ok()) {
    raise(env, outputs.error(), "executing " + text_of(env, name) + " failed");
    return nullptr;
  }
  jmethodID new_tensor = env->GetStaticMethodID(
      tensor_type, "nativeNewTensor", "(Ljava/nio/ByteBuffer;[JILcom/facebook/jni/HybridData;)Lorg/pytorch/executorch/Tensor;");
  jmethodID from = env->GetStaticMethodID(value_type, "from", "(Lorg/pytorch/executorch/Tensor;)Lorg/pytorch/executorch/EValue;");
  jclass buffer_type = env->FindClass("java/nio/ByteBuffer"), order_type = env->FindClass("java/nio/ByteOrder");
  jmethodID set_order = env->GetMethodID(buffer_type, "order", "(Ljava/nio/ByteOrder;)Ljava/nio/ByteBuffer;");
  jobject native_order =
      env->CallStaticObjectMethod(order_type, env->GetStaticMethodID(order_type, "nativeOrder", "()Ljava/nio/ByteOrder;"));
  jobjectArray results = env->NewObjectArray(static_cast<jsize>(outputs->size()), value_type, nullptr);
  for (size_t i = 0; i < outputs->size(); ++i) {
    if (!(*outputs)[i].isTensor()) {
      raise(env, Error::InvalidArgument, "output " + std::to_string(i) + " must be a tensor");
      return nullptr;
    }
    const auto tensor = (*outputs)[i].toTensor();
    std::vector<jlong> dims(tensor.sizes().begin(), tensor.sizes().end());
    jlongArray shape = env->NewLongArray(static_cast<jsize>(dims.size()));
    env->SetLongArrayRegion(shape, 0, static_cast<jsize>(dims.size()), dims.data());
    jobject buffer = env->NewDirectByteBuffer(tensor.mutable_data_ptr(), static_cast<jlong>(tensor.nbytes()));
    buffer = env->CallObjectMethod(buffer, set_order, native_order);
    jobject output_tensor = env->CallStaticObjectMethod(tensor_type, new_tensor, buffer, shape, static_cast<jint>(tensor.scalar_type()), hybrid(env, 0));
    if (env->ExceptionCheck()) return nullptr;
    env->SetObjectArrayElement(results, static_cast<jsize>(i), env->CallStaticObjectMethod(value_type, from, output_tensor));
  }
  return results;
}

}  // extern "C"
