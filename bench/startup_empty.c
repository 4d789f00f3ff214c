/* The library that start-up is compared with: preloaded, it does nothing at all. */
void lmdbio_bench_empty(void);
void lmdbio_bench_empty(void) {}
