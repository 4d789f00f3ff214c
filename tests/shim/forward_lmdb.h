#ifndef LMDBIO_TESTS_SHIM_FORWARD_LMDB_H_
#define LMDBIO_TESTS_SHIM_FORWARD_LMDB_H_

// How many calls came since the start.
int forward_lmdb_calls(void);
// The real function of that name; counts a call.
void* forward_lmdb_real(const char* name);

#endif
