// ExecuTorch programs behind a C interface: load, ask what goes in and out, run. One method per program, "forward".
//
// Every function that can fail returns 0 or a code of ExecuTorch's, and writes a text to `error` (at most `error_size` bytes, ended by 0).
// A program may be used by one thread at a time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHOAL_PROGRAM_INTERFACE = 1, SHOAL_MAX_RANK = 8 };

// An array, row-major. `dtype` is ExecuTorch's number for it: 0 uint8, 3 int32, 4 int64, 6 float32, 11 bool.
typedef struct {
  void* data;
  int32_t dtype;
  int32_t rank;
  int32_t sizes[SHOAL_MAX_RANK];
} shoal_tensor;

typedef struct shoal_program shoal_program;

// SHOAL_PROGRAM_INTERFACE of the library.
int32_t shoal_program_interface(void);

// The version of ExecuTorch that the library was built with.
const char* shoal_executorch_version(void);

// Threads that every program of this process uses from its loading on. 1 at first.
void shoal_set_threads(int32_t threads);

// A program in memory, which stays the caller's and must outlive it. NULL: it cannot be read, or the runtime lacks an operator or a backend.
shoal_program* shoal_program_load(const void* bytes, size_t num_bytes, char* error, size_t error_size);

// A program in a file, which is mapped into memory.
shoal_program* shoal_program_open(const char* path, char* error, size_t error_size);

void shoal_program_free(shoal_program* program);

int32_t shoal_program_num_inputs(const shoal_program* program);
int32_t shoal_program_num_outputs(const shoal_program* program);

// Type and greatest sizes of an input or an output; `data` is set to NULL. 0, or not 0 where there is none of this number.
int32_t shoal_program_describe_input(const shoal_program* program, int32_t index, shoal_tensor* described);
int32_t shoal_program_describe_output(const shoal_program* program, int32_t index, shoal_tensor* described);

// Run the program. The inputs are only read. The outputs lie in the program's memory until its next run or end.
int32_t shoal_program_run(
    shoal_program* program, const shoal_tensor* inputs, int32_t num_inputs, shoal_tensor* outputs, int32_t num_outputs, char* error,
    size_t error_size);

#ifdef __cplusplus
}
#endif
