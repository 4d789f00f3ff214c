// For modules that bundle Debian's static liblmdb, which is not built for shared objects in one place: it
// reaches stderr (in its assertions) relative to its own code.  A hidden variable of that name satisfies it.
__attribute__((visibility("hidden"))) void* bundled_stderr __asm__("stderr");
