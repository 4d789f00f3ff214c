// Opens a module that leaves things open (leaving.c), and closes it.  Knows nothing of LMDB.
//   leaving_host MODULE DIR WHAT
// In threads of its own each: opens the module, has it leave WHAT open, closes it; then forks.  The library's
// threads run on meanwhile.  Says after each whether LMDBIO is still mapped, and at the end how many of its
// threads there are.
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kTurns = 3, kLooks = 200, kPatience = 60 };

static const char *module_path, *dir;
static int what;

union Function {
  void* object;
  int (*make)(const char*);
  int (*open)(const char*, int);
};

static void give_up(const char* why) {
  printf("%s\n", why);
  exit(1);
}

static union Function function(void* module, const char* name) {
  const union Function f = {dlsym(module, name)};
  if (f.object == NULL) give_up(dlerror());
  return f;
}

static void* load_and_leave(void* unused) {
  (void)unused;
  void* const module = dlopen(module_path, RTLD_NOW | RTLD_LOCAL);
  if (module == NULL) give_up(dlerror());
  if (function(module, "leaving_open").open(dir, what) != 0) give_up("leaving_open");
  dlclose(module);
  return NULL;
}

static int mapped(const char* name) {
  char line[4500];
  int found = 0;
  FILE* const maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) found |= strstr(line, name) != NULL;
  if (maps != NULL) fclose(maps);
  return found;
}

static unsigned threads_of_library(void) {
  unsigned n = 0;
  DIR* const tasks = opendir("/proc/self/task");
  for (struct dirent* e; tasks != NULL && (e = readdir(tasks)) != NULL;) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
    FILE* const f = fopen(path, "r");
    if (f == NULL) continue;
    if (fscanf(f, "%31s", name) == 1) n += strncmp(name, "lmdbio", 6) == 0;
    fclose(f);
  }
  if (tasks != NULL) closedir(tasks);
  return n;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  alarm(kPatience);
  module_path = argv[1];
  dir = argv[2];
  what = argv[3][0];
  if (strcmp(argv[3], "make") == 0) {
    void* const module = dlopen(module_path, RTLD_NOW | RTLD_LOCAL);
    if (module == NULL) give_up(dlerror());
    return function(module, "leaving_make").make(dir);
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, load_and_leave, NULL) != 0 || pthread_join(thread, NULL) != 0)
      give_up("thread");
    const pid_t pid = fork();
    int status = -1;
    if (pid == 0) exit(0);  // with the handlers of a fork and of an exit
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) give_up("child");
    printf("LMDBIO mapped: %d\n", mapped("liblmdbio") | mapped("/lmdbio/liblmdb.so"));
  }
  const struct timespec turn_of_others = {0, 1000000};
  for (int k = 0; k < kLooks; ++k)
    nanosleep(&turn_of_others, NULL);  // its threads run: the machine may be busy
  printf("threads: %s\n", threads_of_library() > 0 ? "some" : "none");
  return 0;
}
