/* The library of late_adoption: one function, built with or without call frame information. */
void bare(void)
{
	volatile unsigned long x = 1;
	for (int i = 0; i < 20000; i++)
		x = x * 6364136223846793005u + 1;
}
