/* The single-step workload in hand-written assembly: libcrypto's digests and big numbers, whose call frame
 * information is made of expressions and of frames based on other registers than rsp and rbp. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t outside;
static void on_outside(int sig) { outside += sig; }

static void *library;

static void *need(const char *name)
{
	void *symbol = dlsym(library, name);
	if (!symbol) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return symbol;
}

static void digest(const char *algorithm, int size)
{
	char name[32];
	static unsigned char state[1024], data[300], out[64];
	int (*init)(void *), (*update)(void *, const void *, size_t), (*final)(void *, void *);
	snprintf(name, sizeof name, "%s_Init", algorithm);
	*(void **)&init = need(name);
	snprintf(name, sizeof name, "%s_Update", algorithm);
	*(void **)&update = need(name);
	snprintf(name, sizeof name, "%s_Final", algorithm);
	*(void **)&final = need(name);
	memset(data, 'x', sizeof data);
	init(state);
	update(state, data, sizeof data);
	final(out, state);
	printf("%s ", algorithm);
	for (int i = 0; i < size; i++)
		printf("%02x", out[i]);
	putchar('\n');
}

static void cipher(void)
{
	int (*set_key)(const void *, int, void *);
	void (*encrypt)(const void *, void *, size_t, const void *, void *, int);
	*(void **)&set_key = need("AES_set_encrypt_key");
	*(void **)&encrypt = need("AES_cbc_encrypt");
	static unsigned char key[16], schedule[512], iv[16], data[256], out[256];
	set_key(key, 128, schedule);
	encrypt(data, out, sizeof data, schedule, iv, 1);
	printf("AES %02x%02x\n", out[254], out[255]);
}

static void power(int bits)
{
	void *(*bn_new)(void), *(*ctx_new)(void), *(*from_bytes)(const void *, int, void *);
	int (*mod_exp)(void *, const void *, const void *, const void *, void *), (*to_bytes)(const void *, void *);
	*(void **)&bn_new = need("BN_new");
	*(void **)&ctx_new = need("BN_CTX_new");
	*(void **)&from_bytes = need("BN_bin2bn");
	*(void **)&to_bytes = need("BN_bn2bin");
	*(void **)&mod_exp = need("BN_mod_exp_mont_consttime");
	int (*mod_exp_mont)(void *, const void *, const void *, const void *, void *, void *);
	*(void **)&mod_exp_mont = (void *)mod_exp;
	static unsigned char bytes[512], out[512];
	for (int i = 0; i < bits / 8; i++)
		bytes[i] = (unsigned char)(i * 37 + 129);
	bytes[bits / 8 - 1] |= 1;
	void *modulus = from_bytes(bytes, bits / 8, 0), *base = from_bytes(bytes, bits / 8 - 1, 0);
	unsigned char small[] = { 1, 0, 1 };
	void *exponent = from_bytes(small, 3, 0), *result = bn_new();
	printf("power %d ", mod_exp_mont(result, base, exponent, modulus, ctx_new(), 0));
	int length = to_bytes(result, out);
	printf("%d %02x%02x\n", length, out[0], out[length - 1]);
}

/* With an argument: more. */
int main(int argc, char **argv)
{
	(void)argv;
	signal(SIGUSR1, on_outside);
	library = dlopen("libcrypto.so.3", RTLD_LAZY);
	if (!library) {
		puts("no libcrypto");
		return 63;
	}
	digest("SHA1", 20);
	digest("SHA256", 32);
	digest("SHA512", 64);
	digest("MD5", 16);
	cipher();
	power(512);
	if (argc > 1)
		power(2048);
	return 64;
}
