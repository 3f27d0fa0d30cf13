/* `shared`: a library that has execve look for programs below /virtual elsewhere, as fakechroot does. As a program, `other_paths
 * TIMES` executes itself as often by such a path, each time after 3 ms of computing. */
#define _GNU_SOURCE
#include "burn.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef SHARED
int execve(const char *path, char *const arguments[], char *const environment[])
{
	int (*real)(const char *, char *const[], char *const[]) = dlsym(RTLD_NEXT, "execve");
	const char *root = "/virtual";
	return real(strncmp(path, root, strlen(root)) ? path : path + strlen(root), arguments, environment);
}
#else
BURN(compute)

extern char **environ;

int main(int argc, char **argv)
{
	int left = argc > 1 ? atoi(argv[1]) : 0;
	compute(3);
	if (!left)
		return 0;
	char number[16], path[4096] = "/virtual";
	snprintf(number, sizeof number, "%d", left - 1);
	strncat(path, argv[0], sizeof path - sizeof "/virtual");
	char *arguments[] = { argv[0], number, 0 };
	return execve(path, arguments, environ);
}
#endif
