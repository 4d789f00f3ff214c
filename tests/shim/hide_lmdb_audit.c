// LD_AUDIT library that makes the loader find no liblmdb, except in a directory `stock`, where a wheel has one:
// a machine without it, with no privileges needed.
#include <link.h>
#include <stddef.h>
#include <string.h>

unsigned int la_version(unsigned int version) { return version < LAV_CURRENT ? version : LAV_CURRENT; }

char* la_objsearch(const char* name, uintptr_t* cookie, unsigned int flag) {
  (void)cookie, (void)flag;
  const char* const slash = strrchr(name, '/');
  if (strncmp(slash ? slash + 1 : name, "liblmdb.so", 10) == 0 && strstr(name, "/stock/") == NULL) return NULL;
  return (char*)(uintptr_t)name;
}
