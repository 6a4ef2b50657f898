from tests.simulation.campaign import main

main()
