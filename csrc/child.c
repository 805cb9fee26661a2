/*
 * Work in a process of its own: what may be killed, by a fault on a file that shrank or by the kernel short
 * of memory, must not take the caller with it; and whatever is interrupted leaves nothing behind.
 *
 * The caller may have threads. fork(3) runs handlers of its libraries, such as one of OpenBLAS that stops
 * threads which others are waiting for: so it is not called, and in the child a lock that some thread held,
 * of the heap for one, is never released. What needs the heap, like pthread_create, is done by hand.
 */
#include "tlbprobe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    WAIT_MS = 20,
    STACK = 256 << 10, /* bytes */
    GUARD = 64 << 10,  /* of them inaccessible: whole base pages of any machine */
};

pid_t tlb_fork(void)
{
    return (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
}

/* Handlers of the caller know nothing of this process. What a terminal or a shutdown sends to both of us is
 * for the caller, with whom we die, to decide. */
static void forget_handlers(void)
{
    static int const callers[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP};
    for (int number = 1; number < NSIG; number++)
        (void)signal(number, SIG_DFL);
    for (size_t i = 0; i < sizeof(callers) / sizeof(*callers); i++)
        (void)signal(callers[i], SIG_IGN);
}

/* A limit of one byte: zero would still have a program write it (core_pattern). */
static void leave_no_core(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_CORE, &limit) < 0)
        return;
    limit.rlim_cur = limit.rlim_max < 1 ? limit.rlim_max : 1;
    (void)setrlimit(RLIMIT_CORE, &limit);
}

/* Where memory runs out, it is we who took it. */
static void be_killed_first(void)
{
    int const file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return;
    (void)!write(file, "1000", 4);
    close(file);
}

static void run(int (*work)(void *context), void *context, pid_t parent, const sigset_t *mask,
                struct tlb_child *child)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before it could be asked for the signal */
        _exit(0);
    forget_handlers();
    pthread_sigmask(SIG_SETMASK, mask, NULL);
    leave_no_core();
    be_killed_first();
    child->status = work(context);
    _exit(0);
}

/* Returns once the child has ended or a little time has gone by. */
static void wait_a_little(int pidfd)
{
    if (pidfd >= 0)
        poll(&(struct pollfd){.fd = pidfd, .events = POLLIN}, 1, WAIT_MS);
    else
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL); /* before Linux 5.3, or filtered */
}

static int reap(pid_t pid, int pidfd, struct tlb_child *child, const struct tlb_poll *poll)
{
    pid_t found;
    int ended = 0, status = 0;
    while ((found = waitpid(pid, &ended, WNOHANG)) == 0 && (status = tlb_ask(poll)) == 0)
        wait_a_little(pidfd);
    if (status < 0) {
        kill(pid, SIGKILL);
        while (waitpid(pid, &ended, 0) < 0 && errno == EINTR)
            ;
        return status;
    }
    if (found == pid && WIFSIGNALED(ended))
        child->killed_by = WTERMSIG(ended);
    return child->status; /* also where others collect the ends of all children, or SIGCHLD is ignored */
}

int tlb_in_child(int (*work)(void *context), void *context, struct tlb_child *child,
                 const struct tlb_poll *poll)
{
    sigset_t all, mask;
    pid_t const parent = getpid();
    *child = (struct tlb_child){.status = -ECHILD};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask); /* until the child has no handlers any more */
    pid_t const pid = tlb_fork();
    if (pid == 0)
        run(work, context, parent, &mask, child);
    int const error = errno;
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    if (pid < 0)
        return -error;
    int const pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    int const status = reap(pid, pidfd, child, poll);
    if (pidfd >= 0)
        close(pidfd);
    return status;
}

/* -- Threads ------------------------------------------------------------------------------------------- */

static int run_thread(void *context)
{
    struct tlb_thread *const thread = context;
    thread->work(thread->context);
    atomic_store(&thread->ended, true);
    return 0;
}

/* The stack goes with the process. */
int tlb_thread_start(struct tlb_thread *thread)
{
    int const flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    char *const stack =
        mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, GUARD, PROT_NONE) < 0)
        return -errno;
    atomic_init(&thread->ended, false);
    return clone(run_thread, stack + STACK, flags, thread) < 0 ? -errno : 0;
}

void tlb_thread_wait(struct tlb_thread *thread)
{
    while (!atomic_load(&thread->ended))
        nanosleep(&(struct timespec){.tv_nsec = 200 * 1000}, NULL);
}

int tlb_run_on(int cpu)
{
    cpu_set_t one;
    if (cpu < 0)
        return 0;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    return sched_setaffinity(0, sizeof(one), &one) < 0 ? -errno : 0;
}
