/* Hazard: a thread waits in vfork, whose return address is in a register meanwhile. */
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) static void start_child(void)
{
	pid_t child = vfork();
	if (!child) {
		usleep(300000);
		_exit(0);
	}
	wait(0);
}

int main(void)
{
	for (int i = 0; i < 3; i++)
		start_child();
	return 0;
}
