// Preloaded before the library under test: writes the name of every variable that is asked for through a call
// that can be interposed to the file named by GETENV_SPY.
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

extern char** environ;

static char* find(const char* name) {
  const size_t n = strlen(name);
  for (char** e = environ; e && *e; ++e)
    if (strncmp(*e, name, n) == 0 && (*e)[n] == '=') return *e + n + 1;
  return NULL;
}

static char* spied(const char* name) {
  const char* const file = find("GETENV_SPY");
  const int fd = file ? open(file, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
  if (fd >= 0) {
    if (write(fd, name, strlen(name)) < 0 || write(fd, "\n", 1) < 0) _exit(99);
    close(fd);
  }
  return find(name);
}

char* getenv(const char* name);
char* secure_getenv(const char* name);
char* getenv(const char* name) { return spied(name); }
char* secure_getenv(const char* name) { return spied(name); }
