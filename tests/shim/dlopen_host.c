// Opens modules with RTLD_LOCAL and drives them in turns.  Knows nothing of LMDB and is not linked to it.
//   dlopen_host MODULE DIR [MODULE DIR ...]
// Says at the end, on lines starting with "#", what cannot be the same everywhere: each module's count of
// calls to its bundled stand-in, and whether a shared liblmdb is mapped.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMost = 4 };

static void* symbol(void* module, const char* name) {
  void* const s = dlsym(module, name);
  if (!s) {
    printf("%s\n", dlerror());
    exit(1);
  }
  return s;
}

union Open {
  void* object;
  int (*function)(const char*);
};
union Read {
  void* object;
  int (*function)(int);
};
union Close {
  void* object;
  void (*function)(void);
};
union Calls {
  void* object;
  int (*function)(void);
};

int main(int argc, char** argv) {
  void* module[kMost];
  const int n = (argc - 1) / 2;
  if (n < 1 || n > kMost) return 2;
  for (int i = 0; i < n; ++i) {
    module[i] = dlopen(argv[1 + 2 * i], RTLD_NOW | RTLD_LOCAL);
    if (!module[i]) {
      printf("%s\n", dlerror());
      return 1;
    }
  }
  for (int i = 0; i < n; ++i) {
    printf("open = %d\n", ((union Open){symbol(module[i], "module_open")}).function(argv[2 + 2 * i]));
  }
  for (int turn = 0; turn < 3; ++turn)
    for (int i = 0; i < n; ++i)
      printf("read = %d\n", ((union Read){symbol(module[i], "module_read")}).function(turn < 2 ? 300 : 1000));
  for (int i = 0; i < n; ++i) ((union Close){symbol(module[i], "module_close")}).function();
  for (int i = 0; i < n; ++i)
    printf("# module %d: own calls %d\n", i,
           ((union Calls){symbol(module[i], "module_own_calls")}).function());
  int mapped = 0;
  char line[4500];
  FILE* maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) mapped |= strstr(line, "/liblmdb.so") != NULL;
  if (maps) fclose(maps);
  printf("# shared liblmdb mapped: %d\n", mapped);
  fflush(stdout);
  for (int i = 0; i < n; ++i) dlclose(module[i]);
  return 0;
}
