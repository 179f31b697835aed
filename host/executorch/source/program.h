// C interface of ExecuTorch programs: load, describe inputs and outputs, run. A program has one method, "forward".
//
// Every function that can fail returns 0 or an error code of ExecuTorch, and writes a text to `error` (at most `error_size` bytes, ended by 0).
// A program may be used by one thread at a time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHOAL_PROGRAM_INTERFACE = 1, SHOAL_MAX_RANK = 8 };

// Row-major array. `dtype` is ExecuTorch's number of its type: 0 uint8, 3 int32, 4 int64, 6 float32, 11 bool.
typedef struct {
  void* data;
  int32_t dtype;
  int32_t rank;
  int32_t sizes[SHOAL_MAX_RANK];
} shoal_tensor;

typedef struct shoal_program shoal_program;

// SHOAL_PROGRAM_INTERFACE of the library.
int32_t shoal_program_interface(void);

// Returns the version of ExecuTorch that the library was built with.
const char* shoal_executorch_version(void);

// Sets the number of threads that every program of this process uses from its loading on. It is 1 at first.
void shoal_set_threads(int32_t threads);

// Loads a program from memory, which stays the caller's and must outlive it. Returns NULL if it cannot be read, or the runtime lacks an operator
// or a backend.
shoal_program* shoal_program_load(const void* bytes, size_t num_bytes, char* error, size_t error_size);

// Loads a program from a file, which is mapped into memory.
shoal_program* shoal_program_open(const char* path, char* error, size_t error_size);

void shoal_program_free(shoal_program* program);

int32_t shoal_program_num_inputs(const shoal_program* program);
int32_t shoal_program_num_outputs(const shoal_program* program);

// Describes type and greatest sizes of an input or an output; `data` is set to NULL. Returns 0, or another number if there is none of this index.
int32_t shoal_program_describe_input(const shoal_program* program, int32_t index, shoal_tensor* described);
int32_t shoal_program_describe_output(const shoal_program* program, int32_t index, shoal_tensor* described);

// Runs the program. The inputs are only read. The outputs lie in the program's memory until its next run or end.
int32_t shoal_program_run(
    shoal_program* program, const shoal_tensor* inputs, int32_t num_inputs, shoal_tensor* outputs, int32_t num_outputs, char* error,
    size_t error_size);

#ifdef __cplusplus
}
#endif
