// What every flavour of the module exports.
#ifndef LMDBIO_TESTS_SHIM_MODULE_H_
#define LMDBIO_TESTS_SHIM_MODULE_H_

int module_open(const char* dir);  // makes a database in dir and opens it read-only
int module_read(int n);            // walks n records on and looks some up
void module_close(void);
int module_own_calls(void);  // calls that reached the LMDB bundled with it; -1 if none is

#endif
