// A library runs with glibc 2.28 and later, wherever it was built. The linker binds a function to
// the newest version that the build machine's libc has of it, so those that are newer than 2.28 are
// defined here: for everything in the library, and hidden from what is outside.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

// glibc 2.34 moved these from libpthread, libdl and librt into libc, and gave them a new version.
// They are the same functions as before: each name jumps to the one of the old version, as if it
// had been called.
#define ONNXBOLT_OLD(name, version)                          \
  asm(".symver onnxbolt_" #name ", " #name "@GLIBC_" version \
      "\n"                                                   \
      ".pushsection .text\n.globl " #name "\n.hidden " #name \
      "\n"                                                   \
      ".type " #name ", @function\n" #name                   \
      ":\n"                                                  \
      "  jmp *onnxbolt_" #name                               \
      "@GOTPCREL(%rip)\n"                                    \
      ".size " #name ", . - " #name "\n.popsection")

ONNXBOLT_OLD(dlclose, "2.2.5");
ONNXBOLT_OLD(dlerror, "2.2.5");
ONNXBOLT_OLD(dlmopen, "2.3.4");
ONNXBOLT_OLD(dlopen, "2.2.5");
ONNXBOLT_OLD(dlsym, "2.2.5");
ONNXBOLT_OLD(dlvsym, "2.2.5");
ONNXBOLT_OLD(pthread_condattr_setpshared, "2.2.5");
ONNXBOLT_OLD(pthread_create, "2.2.5");
ONNXBOLT_OLD(pthread_detach, "2.2.5");
ONNXBOLT_OLD(pthread_getspecific, "2.2.5");
ONNXBOLT_OLD(pthread_join, "2.2.5");
ONNXBOLT_OLD(pthread_key_create, "2.2.5");
ONNXBOLT_OLD(__pthread_key_create, "2.2.5");
ONNXBOLT_OLD(pthread_key_delete, "2.2.5");
ONNXBOLT_OLD(pthread_kill, "2.2.5");
ONNXBOLT_OLD(pthread_mutex_trylock, "2.2.5");
ONNXBOLT_OLD(pthread_mutexattr_destroy, "2.2.5");
ONNXBOLT_OLD(pthread_mutexattr_init, "2.2.5");
ONNXBOLT_OLD(pthread_mutexattr_setpshared, "2.2.5");
ONNXBOLT_OLD(pthread_mutexattr_settype, "2.2.5");
ONNXBOLT_OLD(pthread_once, "2.2.5");
ONNXBOLT_OLD(pthread_rwlock_destroy, "2.2.5");
ONNXBOLT_OLD(pthread_rwlock_init, "2.2.5");
ONNXBOLT_OLD(pthread_rwlock_rdlock, "2.2.5");
ONNXBOLT_OLD(pthread_rwlock_timedrdlock, "2.2.5");
ONNXBOLT_OLD(pthread_rwlock_timedwrlock, "2.2.5");
ONNXBOLT_OLD(pthread_rwlock_tryrdlock, "2.2.5");
ONNXBOLT_OLD(pthread_rwlock_trywrlock, "2.2.5");
ONNXBOLT_OLD(pthread_rwlock_unlock, "2.2.5");
ONNXBOLT_OLD(pthread_rwlock_wrlock, "2.2.5");
ONNXBOLT_OLD(pthread_rwlockattr_destroy, "2.2.5");
ONNXBOLT_OLD(pthread_rwlockattr_init, "2.2.5");
ONNXBOLT_OLD(pthread_rwlockattr_setpshared, "2.2.5");
ONNXBOLT_OLD(pthread_setspecific, "2.2.5");
ONNXBOLT_OLD(pthread_spin_destroy, "2.2.5");
ONNXBOLT_OLD(pthread_spin_init, "2.2.5");
ONNXBOLT_OLD(pthread_spin_lock, "2.2.5");
ONNXBOLT_OLD(pthread_spin_trylock, "2.2.5");
ONNXBOLT_OLD(pthread_spin_unlock, "2.2.5");
ONNXBOLT_OLD(sem_destroy, "2.2.5");
ONNXBOLT_OLD(sem_init, "2.2.5");
ONNXBOLT_OLD(sem_post, "2.2.5");
ONNXBOLT_OLD(sem_timedwait, "2.2.5");
ONNXBOLT_OLD(sem_trywait, "2.2.5");
ONNXBOLT_OLD(sem_wait, "2.2.5");
ONNXBOLT_OLD(shm_open, "2.2.5");
ONNXBOLT_OLD(shm_unlink, "2.2.5");

// New in 2.33 as a function. The kernel fills the same struct, which the caller has the declaration
// of.
extern "C" __attribute__((visibility("hidden"))) int PortableFstat(int file,
                                                                   void* status) __asm__("fstat64");
int PortableFstat(int file, void* status) {
  return static_cast<int>(syscall(SYS_fstat, file, status));
}

// New in 2.32: libstdc++ does without atomic instructions while it is true, which is never wrong to
// deny.
extern "C" __attribute__((visibility("hidden"))) char PortableSingleThreaded __asm__(
    "__libc_single_threaded");
char PortableSingleThreaded = 0;

// std::random_device of libstdc++ calls arc4random (2.36) and strtoul (2.38 in its newest version).
// std::string refers to its constructor; nothing here draws random numbers.
extern "C" [[noreturn]] __attribute__((visibility("hidden"))) void NoRandomDevice() __asm__(
    "_ZNSt13random_device7_M_initEPKcm");
void NoRandomDevice() { std::abort(); }
