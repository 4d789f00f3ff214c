#include "caffe_patch/db_lmdbio.hpp"  // where caffe_patch/apply copies it to
