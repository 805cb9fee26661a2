/*
 * Somebody else's program: started and held, let go, and followed to its end.
 *
 * Until it has become another program, the child of a process with threads may call nothing but the kernel: a
 * lock that another thread held stays locked in it for ever. So it is made by the system call alone, without
 * what libraries do around fork(), and what it has to say goes through a pipe.
 */
#include "tlbprobe.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of <linux/prctl.h> and <linux/ptrace.h>, which older systems do not have whole. */
enum { SET_THP_DISABLE = 41, TRACE_EXIT = 0x40, EVENT_EXIT = 6, EVENT_STOP = 128, LISTEN = 0x4208 };

static uint64_t microseconds(struct timeval time)
{
    return (uint64_t)time.tv_sec * 1000000u + (uint64_t)time.tv_usec;
}

static void report(const struct tlb_program *program, enum tlb_stage stage, int error)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    struct tlb_start const start = {.ns = tlb_clock_ns(),
                                    .user_us = microseconds(used.ru_utime),
                                    .system_us = microseconds(used.ru_stime),
                                    .minor = (uint64_t)used.ru_minflt,
                                    .major = (uint64_t)used.ru_majflt,
                                    .voluntary = (uint64_t)used.ru_nvcsw,
                                    .involuntary = (uint64_t)used.ru_nivcsw,
                                    .peak = (uint64_t)used.ru_maxrss * 1024,
                                    .stage = (uint64_t)stage,
                                    .error = (uint64_t)error};
    ssize_t const written = write(program->report, &start, sizeof start);
    (void)written; /* nobody else could be told */
}

/* Handlers of the parent must not run in the child; and Python ignores two signals that others do not. */
static void default_signals(const sigset_t *mask)
{
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        int const python = number == SIGPIPE || number == SIGXFSZ;
        if (sigaction(number, NULL, &action) == 0 && (python || action.sa_handler != SIG_IGN)) {
            action = (struct sigaction){.sa_handler = SIG_DFL};
            sigaction(number, &action, NULL);
        }
    }
    pthread_sigmask(SIG_SETMASK, mask, NULL);
}

static int redirect(const int streams[3])
{
    for (int number = 0; number < 3; number++)
        if (streams[number] >= 0 && dup2(streams[number], number) < 0)
            return -errno;
    return 0;
}

static int forbid_pages(const unsigned long thp[2])
{
    return thp[0] == 0 || prctl(SET_THP_DISABLE, thp[0], thp[1], 0ul, 0ul) == 0 ? 0 : -errno;
}

/* The first of its paths that can be executed: of those that cannot, the error that says most. */
static int execute(const struct tlb_program *program)
{
    int error = ENOENT;
    for (char *const *path = program->paths; *path; path++) {
        execve(*path, program->arguments, program->environment);
        if (errno != ENOENT && errno != ENOTDIR && error == ENOENT)
            error = errno;
    }
    return -error;
}

static _Noreturn void become(const struct tlb_program *program, pid_t parent, const sigset_t *mask)
{
    char go;
    default_signals(mask);
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0ul, 0ul, 0ul); /* nobody would wait for it any more */
    if (getppid() != parent || read(program->go, &go, 1) != 1)
        _exit(127);
    int status = redirect(program->streams);
    enum tlb_stage stage = TLB_REDIRECTING;
    if (status == 0) {
        stage = TLB_FORBIDDING;
        status = forbid_pages(program->thp);
    }
    if (status == 0) {
        stage = TLB_EXECUTING;
        report(program, stage, 0);
        status = execute(program);
    }
    report(program, stage, -status);
    _exit(127);
}

int tlb_program_launch(const struct tlb_program *program, pid_t *pid)
{
    sigset_t all, mask;
    pid_t const parent = getpid();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    pid_t const child = tlb_fork();
    if (child == 0)
        become(program, parent, &mask);
    int const error = child < 0 ? errno : 0;
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    *pid = child;
    return -error;
}

/* The pipe ends when the program has begun: its end of it closes with the exec. What it said last counts. */
int tlb_program_go(int go, int from, struct tlb_start *start)
{
    struct tlb_start next;
    *start = (struct tlb_start){.stage = TLB_HELD, .error = ESRCH}; /* killed before it could say anything */
    if (write(go, "", 1) != 1)
        return errno == EPIPE ? 0 : -errno;
    for (;;) {
        ssize_t const got = read(from, &next, sizeof next);
        if (got == (ssize_t)sizeof next)
            *start = next;
        else if (got == 0)
            return 0;
        else if (got > 0 || errno != EINTR)
            return got > 0 ? -EIO : -errno;
    }
}

int tlb_program_trace(pid_t pid)
{
    return ptrace(PTRACE_SEIZE, pid, 0, TRACE_EXIT) < 0 ? -errno : 0;
}

int tlb_program_resume(pid_t pid)
{
    return ptrace(PTRACE_CONT, pid, 0, 0) < 0 && errno != ESRCH ? -errno : 0;
}

/* A traced program stops at each signal, which is then passed on, and stays stopped where it was told to. */
static void pass_on(pid_t pid, int status)
{
    int const signal = WSTOPSIG(status), kind = status >> 16;
    if (kind == EVENT_STOP && signal != SIGTRAP)
        ptrace((enum __ptrace_request)LISTEN, pid, 0, 0);
    else
        ptrace(PTRACE_CONT, pid, 0, kind ? 0 : signal);
}

int tlb_program_wait(pid_t pid, enum tlb_ending *event, uint64_t *ns)
{
    for (;;) {
        siginfo_t info = {0};
        int status;
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | __WALL) < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        *ns = tlb_clock_ns();
        *event = TLB_ENDED;
        if (info.si_code == CLD_EXITED || info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED)
            return 0;
        if (wait4(pid, &status, __WALL, NULL) < 0)
            return -errno;
        *event = TLB_EXITING;
        if (status >> 16 == EVENT_EXIT)
            return 0;
        pass_on(pid, status);
    }
}
