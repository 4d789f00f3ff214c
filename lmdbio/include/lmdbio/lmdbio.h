/* LMDBIO beyond LMDB's own interface, which is lmdb.h's.  C and C++. */
#ifndef LMDBIO_LMDBIO_H
#define LMDBIO_LMDBIO_H

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, "major.minor.patch"; a constant string.  Any thread.  A program that runs without
 * the library too declares it weak and tests its address. */
const char* lmdbio_version(void);

#ifdef __cplusplus
}
#endif

#endif
