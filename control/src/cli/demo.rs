//! Options of `pollux demo`.

use clap::Args;

use crate::cores::CoreSet;

/// What the demonstration should do. It starts two appliances of its own on this host, connects
/// them over the soft fabric, and shows what SMC-R and inline sends are worth.
#[derive(Clone, Debug, Default, PartialEq, Args)]
pub struct DemoOptions {
    /// Fewer sizes and shorter runs; ends within some seconds.
    #[arg(long)]
    pub quick: bool,
    /// How long each measurement runs [default: 1, with --quick 0.2].
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds)]
    pub seconds: Option<f64>,
    /// Leave the appliances running, and tell how to look at them.
    #[arg(long)]
    pub keep: bool,
    /// Cores for the workers, as 0,1 or 0x3; without it, the last ones that are allowed.
    #[arg(long, value_name = "LIST")]
    pub cores: Option<CoreSet>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Demo {
        #[command(flatten)]
        options: DemoOptions,
    }

    #[test]
    fn options_are_read_and_wrong_cores_refused() {
        let demo = Demo::try_parse_from(["demo", "--quick", "--cores", "0-1", "--seconds", "0.5"]);
        let options = demo.map(|demo| demo.options).expect("legal");
        let cores = Some(CoreSet::of([0, 1]));
        let expected = DemoOptions {
            quick: true,
            seconds: Some(0.5),
            keep: false,
            cores,
        };
        assert_eq!(options, expected);
        assert!(Demo::try_parse_from(["demo", "--cores", "x"]).is_err());
        assert!(Demo::try_parse_from(["demo", "--seconds", "-1"]).is_err());
    }
}
