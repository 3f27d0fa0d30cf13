/* Found only through the RUNPATH of whoever asks for it by bare name. */
#include "burn.h"

BURN(hidden_work)

int hidden(void)
{
	hidden_work(150);
	return 31;
}
